import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.Set;

import org.apache.iceberg.Files;
import org.apache.iceberg.ManifestContent;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;

/** Answers, for each line with a metadata file's path, `ok` or why Iceberg cannot read the table. */
public class IcebergParser {
  public static void main(String[] arguments) throws IOException {
    try (ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
      System.out.println(server.getLocalPort());
      while (true) {
        Socket client = server.accept();
        new Thread(() -> serve(client)).start();
      }
    }
  }

  private static void serve(Socket client) {
    try (client;
        BufferedReader lines = new BufferedReader(new InputStreamReader(client.getInputStream()));
        PrintWriter answers = new PrintWriter(client.getOutputStream(), true)) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        answers.println(refusal(line));
      }
    } catch (IOException gone) {
      // A test that was killed takes no answer.
    }
  }

  private static String refusal(String path) {
    try {
      read(path);
      return "ok";
    } catch (RuntimeException | IOException error) {
      StringBuilder causes = new StringBuilder();
      for (Throwable cause = error; cause != null; cause = cause.getCause()) {
        causes.append(cause.getClass().getSimpleName()).append(": ").append(cause.getMessage()).append("; ");
      }
      return causes.toString().replace('\n', ' ');
    }
  }

  private static void read(String path) throws IOException {
    FileIO io = new LocalFiles();
    TableMetadata table = TableMetadataParser.read(io, path);
    Set<String> seen = new HashSet<>();
    for (Snapshot snapshot : table.snapshots()) {
      for (ManifestFile manifest : snapshot.allManifests(io)) {
        if (seen.add(manifest.path())) {
          readEntries(manifest, io, table);
        }
      }
    }
  }

  private static void readEntries(ManifestFile manifest, FileIO io, TableMetadata table)
      throws IOException {
    if (manifest.content() == ManifestContent.DATA) {
      try (CloseableIterable<?> files = ManifestFiles.read(manifest, io, table.specsById())) {
        files.forEach(file -> {});
      }
    } else {
      try (CloseableIterable<?> files =
          ManifestFiles.readDeleteManifest(manifest, io, table.specsById())) {
        files.forEach(file -> {});
      }
    }
  }

  private static class LocalFiles implements FileIO {
    @Override
    public InputFile newInputFile(String location) {
      return Files.localInput(
          location.startsWith("file:") ? Path.of(URI.create(location).getPath()).toFile() : Path.of(location).toFile());
    }

    @Override
    public OutputFile newOutputFile(String location) {
      throw new UnsupportedOperationException("only reads");
    }

    @Override
    public void deleteFile(String location) {
      throw new UnsupportedOperationException("only reads");
    }
  }
}
