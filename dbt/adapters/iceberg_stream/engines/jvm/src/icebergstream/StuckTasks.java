package icebergstream;

import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.spark.SparkConf;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;

/**
 * Ends the engine if tasks of a guarded session do not end after their job has.
 *
 * <p>Some expressions cannot be interrupted, such as a regular expression that backtracks. Canceled
 * tasks that go on keep their cores, and a few of them would block the engine for all callers.
 * Spark's own task reaper does not end an engine that runs in one process.
 */
public final class StuckTasks extends SparkListener {
  private static final String SECONDS = "spark.icebergstream.stuckTaskSeconds";

  private final long seconds;
  private final Map<Integer, Set<Integer>> stagesOfJobs = new ConcurrentHashMap<>();
  private final Map<Long, Integer> stagesOfTasks = new ConcurrentHashMap<>();
  private final ScheduledExecutorService checks =
      Executors.newSingleThreadScheduledExecutor(
          task -> {
            Thread thread = new Thread(task, "stuck-tasks");
            thread.setDaemon(true);
            return thread;
          });

  public StuckTasks(SparkConf conf) {
    seconds = conf.getLong(SECONDS, 60);
  }

  @Override
  public void onJobStart(SparkListenerJobStart job) {
    // Spark gives a session's settings to its tasks with the properties of the job.
    if (job.properties() == null || job.properties().getProperty(StatementGuard.CATALOG) == null) {
      return;
    }
    Set<Integer> stages = ConcurrentHashMap.newKeySet();
    for (Iterator<?> ids = iterator(job); ids.hasNext(); ) {
      stages.add((Integer) ids.next());
    }
    stagesOfJobs.put(job.jobId(), stages);
  }

  private static Iterator<?> iterator(SparkListenerJobStart job) {
    return scala.jdk.javaapi.CollectionConverters.asJava(job.stageIds()).iterator();
  }

  @Override
  public void onTaskStart(SparkListenerTaskStart task) {
    boolean isGuarded = stagesOfJobs.values().stream().anyMatch(s -> s.contains(task.stageId()));
    if (isGuarded) {
      stagesOfTasks.put(task.taskInfo().taskId(), task.stageId());
    }
  }

  @Override
  public void onTaskEnd(SparkListenerTaskEnd task) {
    stagesOfTasks.remove(task.taskInfo().taskId());
  }

  @Override
  public void onJobEnd(SparkListenerJobEnd job) {
    Set<Integer> stages = stagesOfJobs.remove(job.jobId());
    if (stages == null) {
      return;
    }
    Set<Long> left =
        stagesOfTasks.entrySet().stream()
            .filter(task -> stages.contains(task.getValue()))
            .map(Map.Entry::getKey)
            .collect(Collectors.toSet());
    if (!left.isEmpty()) {
      checks.schedule(() -> endIfRunning(left), seconds, TimeUnit.SECONDS);
    }
  }

  private void endIfRunning(Set<Long> tasks) {
    if (tasks.stream().anyMatch(stagesOfTasks::containsKey)) {
      System.err.println(
          "ERROR tasks of a caller's statement still run " + seconds
              + " s after it was canceled, so the engine ends");
      Runtime.getRuntime().halt(3);
    }
  }
}
