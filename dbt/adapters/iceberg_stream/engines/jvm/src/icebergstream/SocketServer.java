package icebergstream;

import io.netty.channel.EventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.nio.NioIoHandler;
import io.netty.channel.socket.nio.NioServerDomainSocketChannel;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnixDomainSocketAddress;
import java.nio.file.Path;
import java.util.Arrays;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connect.config.Connect$;
import org.apache.spark.sql.connect.service.SparkConnectInterceptorRegistry;
import org.apache.spark.sql.connect.service.SparkConnectService;
import org.apache.spark.sql.connect.service.SparkConnectService$;
import org.sparkproject.connect.grpc.Server;
import org.sparkproject.connect.grpc.netty.NettyServerBuilder;

/**
 * A Spark Connect server on a Unix domain socket, in place of Spark's own main class.
 *
 * <p>Spark can listen on a TCP port only: any user of the machine may connect to it, or listen on
 * it after the server has ended and receive what clients send. The folder of a socket decides who
 * may do either.
 */
public final class SocketServer {
  private SocketServer() {}

  /** Serve on the socket whose path is the only argument, until the process ends. */
  public static void main(String[] arguments) throws Exception {
    Thread initialization = new Thread(BrokenClasses::initialize);
    initialization.start();
    // As Spark's own main class: each session has its own artifacts and class loader.
    SparkSession session =
        SparkSession.builder()
            .config("spark.sql.artifact.isolation.enabled", true)
            .config("spark.sql.artifact.isolation.alwaysApplyClassloader", true)
            .getOrCreate();
    SparkConnectService$ service = SparkConnectService$.MODULE$;
    initialization.join();
    Server server = serve(session.sparkContext(), Path.of(arguments[0]));
    service.server_$eq(server);
    // Spark shows this address in its events and does not use it otherwise.
    service.bindingAddress_$eq(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
    call(service, "createListenerAndUI", session.sparkContext());
    service.started_$eq(true);
    service.stopped_$eq(false);
    call(service, "postSparkConnectServiceStarted");
    try {
      server.awaitTermination();
    } finally {
      if (service.started()) {
        service.stop(service.stop$default$1(), service.stop$default$2());
      }
      session.stop();
    }
  }

  private static Server serve(SparkContext context, Path path) throws Exception {
    EventLoopGroup loops = new MultiThreadIoEventLoopGroup(NioIoHandler.newFactory());
    Object largest =
        context.conf().get(Connect$.MODULE$.CONNECT_GRPC_MAX_INBOUND_MESSAGE_SIZE());
    NettyServerBuilder builder =
        NettyServerBuilder.forAddress(UnixDomainSocketAddress.of(path))
            .channelType(NioServerDomainSocketChannel.class)
            .bossEventLoopGroup(loops)
            .workerEventLoopGroup(loops)
            .maxInboundMessageSize(((Number) largest).intValue())
            .addService(new SparkConnectService(false));
    SparkConnectInterceptorRegistry.chainInterceptors(builder);
    return builder.build().start();
  }

  /** Call a private method of Spark's service: the rest of its start. */
  private static void call(Object service, String name, Object... arguments) throws Exception {
    Class<?>[] types =
        Arrays.stream(arguments).map(Object::getClass).toArray(Class<?>[]::new);
    Method method = service.getClass().getDeclaredMethod(name, types);
    method.setAccessible(true);
    method.invoke(service, arguments);
  }
}
