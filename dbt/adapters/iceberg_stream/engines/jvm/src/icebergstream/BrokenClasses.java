package icebergstream;

import java.util.regex.Pattern;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.sql.connect.service.SparkListenerConnectOperationFailed;

/**
 * Prevents classes that stay unusable, and ends an engine that has one.
 *
 * <p>A static initializer that fails once makes its class unusable until the process ends. In a
 * task, one that looks for further classes asks the driver for them, and fails if the task is
 * canceled meanwhile.
 */
public final class BrokenClasses extends SparkListener {
  /** Initializers that look for classes of other engines, which are missing here. */
  private static final String[] SEARCHING = {"org.apache.iceberg.formats.FormatModelRegistry"};

  /** Of the engine itself; a user's own class may fail each time. */
  private static final Pattern BROKEN =
      Pattern.compile(
          "Could not initialize class (java|scala|org\\.apache|org\\.sparkproject|io\\.netty)\\.");

  /** Initialize the classes in this thread, which nobody cancels. */
  static void initialize() {
    for (String name : SEARCHING) {
      try {
        Class.forName(name);
      } catch (ClassNotFoundException error) {
        // Another version of Iceberg.
      }
    }
  }

  @Override
  public void onOtherEvent(SparkListenerEvent event) {
    if (event instanceof SparkListenerConnectOperationFailed failed
        && BROKEN.matcher(failed.errorMessage()).find()) {
      System.err.println(
          "ERROR a class of the engine is unusable, so the engine ends: " + failed.errorMessage());
      Runtime.getRuntime().halt(4);
    }
  }
}
