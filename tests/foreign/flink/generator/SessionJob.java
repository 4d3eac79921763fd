import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.legacy.SinkFunction;
import org.apache.flink.streaming.api.functions.source.legacy.SourceFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * Session windows that are run twice: whole, and up to the middle, where a savepoint is taken.
 *
 * <p>The first half opens 50 sessions, five of each of ten keys; half of them are of three events, of which the later
 * ones lie before the first one, behind it, or between two windows that they make one. The second half comes in the
 * order of time: event i has the key (i * 7) % 10, the amount i % 10 + 1 and the time 100000 + 300 * i; after every
 * tenth the watermark is the time of the last one less 5000. Written are the savepoint, and what was emitted in the
 * whole run, a line each: key, start, end, sum, latest time.
 */
public class SessionJob {
  static final List<Tuple3<Long, Long, Long>> EVENTS = new ArrayList<>();
  static final int HALF;
  static final AtomicInteger allowed = new AtomicInteger();
  static final AtomicInteger sent = new AtomicInteger();
  static final ConcurrentLinkedQueue<String> emitted = new ConcurrentLinkedQueue<>();

  static {
    for (int round = 0; round < 3; round++) {
      for (long session = 0; session < 5; session++) {
        for (long key = 0; key < 10; key++) {
          long base = 100_000 + session * 10_000 + key * 37;
          boolean merges = (key + session) % 2 == 0;
          long[] times =
              (key + session) % 4 == 0
                  ? new long[] {base, base + 4_000, base + 2_000}
                  : new long[] {base, base + 2_000, base - 2_100};
          if (merges || round == 0) {
            EVENTS.add(Tuple3.of(key, 100L * (round + 1), times[round]));
          }
        }
      }
    }
    HALF = EVENTS.size();
    for (long i = 0; i < 200; i++) {
      EVENTS.add(Tuple3.of(i * 7 % 10, i % 10 + 1, 100_000 + 300 * i));
    }
  }

  /** Sends events as far as it may. */
  public static class Events implements SourceFunction<Tuple3<Long, Long, Long>> {
    volatile boolean running = true;

    @Override
    public void run(SourceContext<Tuple3<Long, Long, Long>> context) throws Exception {
      int next = 0;
      while (running && next < EVENTS.size()) {
        if (next >= allowed.get()) {
          Thread.sleep(5);
          continue;
        }
        Tuple3<Long, Long, Long> event = EVENTS.get(next);
        context.collectWithTimestamp(event, event.f2);
        next++;
        if (next > HALF && (next - HALF) % 10 == 0) {
          context.emitWatermark(new Watermark(event.f2 - 5_000));
        }
        if (next == EVENTS.size()) {
          context.emitWatermark(Watermark.MAX_WATERMARK);
        }
        sent.set(next);
      }
      while (running) {
        Thread.sleep(5);
      }
    }

    @Override
    public void cancel() {
      running = false;
    }
  }

  /** Tells of the sum of a session. */
  public static class Told extends ProcessWindowFunction<Tuple3<Long, Long, Long>, String, Long, TimeWindow> {
    @Override
    public void process(Long key, Context context, Iterable<Tuple3<Long, Long, Long>> sums, Collector<String> out) {
      Tuple3<Long, Long, Long> sum = sums.iterator().next();
      TimeWindow window = context.window();
      out.collect(key + "," + window.getStart() + "," + window.getEnd() + "," + sum.f1 + "," + sum.f2);
    }
  }

  /** Keeps what comes. */
  public static class Kept implements SinkFunction<String> {
    @Override
    public void invoke(String line, Context context) {
      emitted.add(line);
    }
  }

  static void build(StreamExecutionEnvironment environment) {
    environment
        .addSource(new Events(), "events", Types.TUPLE(Types.LONG, Types.LONG, Types.LONG))
        .setParallelism(1)
        .uid("events")
        .keyBy(event -> event.f0, Types.LONG)
        .window(EventTimeSessionWindows.withGap(java.time.Duration.ofMillis(2_500)))
        .reduce((one, other) -> Tuple3.of(one.f0, one.f1 + other.f1, Math.max(one.f2, other.f2)), new Told())
        .uid("sessions")
        .addSink(new Kept())
        .uid("kept");
  }

  static void await(String what, java.util.concurrent.Callable<Boolean> condition) throws Exception {
    for (int tries = 0; !condition.call(); tries++) {
      if (tries > 3000) {
        throw new RuntimeException("waited in vain for " + what);
      }
      Thread.sleep(20);
    }
  }

  static List<String> run(int events, Path savepoint) throws Exception {
    List<String> lines = new ArrayList<>();
    emitted.clear();
    sent.set(0);
    allowed.set(events);
    Configuration configuration = new Configuration();
    configuration.setString("state.backend.type", "rocksdb");
    configuration.setString("execution.checkpointing.data-inline-threshold", "0");
    configuration.setString("execution.checkpointing.dir", Files.createTempDirectory("sessions").toUri().toString());
    configuration.setString("rest.bind-port", "0");
    configuration.setString("rest.port", "0");
    configuration.setString("taskmanager.memory.managed.size", "128m");
    try (MiniCluster cluster =
        new MiniCluster(
            new MiniClusterConfiguration.Builder()
                .setConfiguration(configuration)
                .setNumTaskManagers(1)
                .setNumSlotsPerTaskManager(2)
                .build())) {
      cluster.start();
      StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(2, configuration);
      environment.setParallelism(2);
      environment.setMaxParallelism(128);
      build(environment);
      JobGraph graph = environment.getStreamGraph().getJobGraph();
      JobID id = graph.getJobID();
      cluster.submitJob(graph).get();
      await("events", () -> sent.get() >= events);
      Thread.sleep(2000);
      if (savepoint != null) {
        String place = cluster.triggerSavepoint(id, savepoint.toUri().toString(), false, SavepointFormatType.CANONICAL).get();
        System.out.println(place);
      }
      lines.addAll(emitted);
      cluster.cancelJob(id).get();
      await("the end", () -> cluster.getJobStatus(id).get().isGloballyTerminalState());
    }
    Collections.sort(lines);
    return lines;
  }

  public static void main(String[] arguments) throws Exception {
    Path out = Paths.get(arguments[0]).toAbsolutePath();
    Files.createDirectories(out);
    run(HALF, out.resolve("savepoints"));
    Files.write(out.resolve("whole.csv"), run(EVENTS.size(), null), StandardCharsets.UTF_8);
    System.exit(0);
  }
}
