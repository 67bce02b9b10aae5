package icebergstream;

import java.io.Closeable;
import java.io.IOException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.iceberg.spark.SparkCatalog;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.sql.connect.service.SessionHolder;
import org.apache.spark.sql.connect.service.SessionKey;
import org.apache.spark.sql.connect.service.SparkConnectService$;
import org.apache.spark.sql.connect.service.SparkListenerConnectOperationStarted;
import org.apache.spark.sql.connect.service.SparkListenerConnectSessionClosed;
import org.apache.spark.sql.connector.catalog.CatalogManager;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Closes the catalogs of a session that has ended, with their connections.
 *
 * <p>Spark does not: an engine that lives for days would run out of file descriptors.
 */
public final class ClosedSessions extends SparkListener {
  private final Map<SessionKey, SessionHolder> sessions = new ConcurrentHashMap<>();

  @Override
  public void onOtherEvent(SparkListenerEvent event) {
    if (event instanceof SparkListenerConnectOperationStarted started) {
      // At its own start Spark does not know the session by its id yet.
      sessions.computeIfAbsent(
          new SessionKey(started.userId(), started.sessionId()),
          key ->
              SparkConnectService$.MODULE$
                  .sessionManager()
                  .getIsolatedSessionIfPresent(key)
                  .getOrElse(() -> null));
    } else if (event instanceof SparkListenerConnectSessionClosed closed) {
      SessionHolder session = sessions.remove(new SessionKey(closed.userId(), closed.sessionId()));
      if (session != null) {
        close(session.session().sessionState().catalogManager());
      }
    }
  }

  private static void close(CatalogManager catalogs) {
    // Only those that the session has used.
    for (String name : CollectionConverters.asJava(catalogs.listCatalogs(Option.empty()))) {
      if (catalogs.catalog(name) instanceof SparkCatalog catalog
          && catalog.icebergCatalog() instanceof Closeable closeable) {
        try {
          closeable.close();
        } catch (IOException error) {
          System.err.println("WARN the catalog " + name + " cannot be closed: " + error);
        }
      }
    }
  }
}
