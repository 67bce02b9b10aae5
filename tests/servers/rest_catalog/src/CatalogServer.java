import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.FileWriter;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Instant;
import java.util.Base64;
import java.util.EnumSet;
import java.util.Map;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.FilterHolder;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/**
 * Iceberg's reference REST catalog behind bearer tokens: JWTs signed with HS256, whose `role` is
 * `writer` (may do all), `reader` (may only look), or another one (may do nothing).
 * Arguments: port, folder, key, request log.
 */
public final class CatalogServer {
  public static void main(String[] arguments) throws Exception {
    int port = Integer.parseInt(arguments[0]);
    String folder = arguments[1];
    Catalog catalog =
        CatalogUtil.buildIcebergCatalog(
            "backend",
            Map.of(
                "type", "jdbc",
                "uri", "jdbc:sqlite:" + folder + "/backend.db?busy_timeout=10000",
                "jdbc.schema-version", "V1",
                "warehouse", "file://" + folder + "/warehouse"),
            new Configuration());
    ServletContextHandler context = new ServletContextHandler();
    RESTCatalogServlet servlet = new RESTCatalogServlet(new RESTCatalogAdapter(catalog));
    context.addServlet(new ServletHolder(servlet), "/*");
    Filter guard = new Guard(arguments[2], new PrintWriter(new FileWriter(arguments[3]), true));
    context.addFilter(
        new FilterHolder(guard), "/*", EnumSet.of(jakarta.servlet.DispatcherType.REQUEST));
    Server server = new Server(new java.net.InetSocketAddress("127.0.0.1", port));
    server.setHandler(context);
    server.start();
    server.join();
  }

  private record Guard(String key, PrintWriter log) implements Filter {
    private static final ObjectMapper JSON = new ObjectMapper();

    @Override
    public void doFilter(ServletRequest plain, ServletResponse response, FilterChain chain)
        throws IOException, ServletException {
      HttpServletRequest request = (HttpServletRequest) plain;
      HttpServletResponse answer = (HttpServletResponse) response;
      JsonNode claims = claims(request.getHeader("Authorization"));
      String principal = claims == null ? "-" : claims.path("sub").asText();
      if (claims == null || claims.path("exp").asLong() < Instant.now().getEpochSecond()) {
        refuse(answer, 401, "NotAuthorizedException", "The token is not valid or has expired");
      } else if (!allowed(claims.path("role").asText(), request)) {
        String operation = operation(request);
        refuse(
            answer,
            403,
            "ForbiddenException",
            "Principal '" + principal + "' is not authorized for op " + operation);
      } else {
        chain.doFilter(request, response);
      }
      log.println(
          principal + " " + request.getMethod() + " " + request.getRequestURI() + " "
              + answer.getStatus());
    }

    private static boolean allowed(String role, HttpServletRequest request) {
      boolean looks = request.getMethod().equals("GET") || request.getMethod().equals("HEAD");
      return role.equals("writer")
          || (role.equals("reader") && looks)
          || request.getRequestURI().endsWith("/metrics");
    }

    private static String operation(HttpServletRequest request) {
      String[] parts = request.getRequestURI().split("/");
      String kind = "CATALOG";
      for (String part : parts) {
        switch (part) {
          case "namespaces" -> kind = "NAMESPACE";
          case "tables" -> kind = "TABLE";
          case "views" -> kind = "VIEW";
          default -> { }
        }
      }
      boolean collection = kind.equals(parts[parts.length - 1].toUpperCase().replaceAll("S$", ""));
      return switch (request.getMethod()) {
        case "GET", "HEAD" -> "LOAD_" + kind;
        case "DELETE" -> "DROP_" + kind;
        default -> (collection ? "CREATE_" : "UPDATE_") + kind;
      };
    }

    /** The claims of a token of ours, null for any other. */
    private JsonNode claims(String header) {
      try {
        String[] parts = header.substring("Bearer ".length()).split("\\.");
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(key.getBytes(StandardCharsets.UTF_8), "HmacSHA256"));
        byte[] wanted = mac.doFinal((parts[0] + "." + parts[1]).getBytes(StandardCharsets.UTF_8));
        Base64.Decoder decoder = Base64.getUrlDecoder();
        boolean ours = MessageDigest.isEqual(wanted, decoder.decode(parts[2]));
        return ours ? JSON.readTree(decoder.decode(parts[1])) : null;
      } catch (Exception notOurs) {
        return null;
      }
    }

    private static void refuse(HttpServletResponse answer, int code, String type, String message)
        throws IOException {
      answer.setStatus(code);
      answer.setContentType("application/json");
      Map<String, Object> error = Map.of("message", message, "type", type, "code", code);
      answer.getWriter().write(JSON.writeValueAsString(Map.of("error", error)));
    }
  }
}
