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
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.legacy.SinkFunction;
import org.apache.flink.streaming.api.functions.source.legacy.SourceFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * A job that is run twice: whole, and up to the middle, where a savepoint is taken.
 *
 * <p>Event i has the key (i * 7) % 13, the amount i % 10 + 1, the category "c" + i % 3 and the time 100 * i; after every
 * tenth the watermark is the time of the last one. Written are the savepoint, and what was emitted in the first half
 * and in the whole run, a line each: what, key, time, and the numbers.
 */
public class HalfJob {
  static final int EVENTS = 400;
  static final AtomicInteger allowed = new AtomicInteger();
  static final AtomicInteger sent = new AtomicInteger();
  static final ConcurrentLinkedQueue<String> emitted = new ConcurrentLinkedQueue<>();

  /** Sends events as far as it may. */
  public static class Events implements SourceFunction<Tuple4<Long, Long, String, Long>> {
    volatile boolean running = true;

    @Override
    public void run(SourceContext<Tuple4<Long, Long, String, Long>> context) throws Exception {
      int next = 0;
      while (running && next < EVENTS) {
        if (next >= allowed.get()) {
          Thread.sleep(5);
          continue;
        }
        long time = 100L * next;
        context.collectWithTimestamp(Tuple4.of((long) (next * 7 % 13), next % 10 + 1L, "c" + next % 3, time), time);
        next++;
        if (next % 10 == 0) {
          context.emitWatermark(new Watermark(time));
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

  /** Keeps a sum, a list and a map for each key; a timer tells of them. */
  public static class Totals extends KeyedProcessFunction<Long, Tuple4<Long, Long, String, Long>, String> {
    transient ValueState<Long> total;
    transient ListState<Long> amounts;
    transient MapState<String, Long> byCategory;

    @Override
    public void open(OpenContext context) {
      total = getRuntimeContext().getState(new ValueStateDescriptor<>("total", Types.LONG));
      amounts = getRuntimeContext().getListState(new ListStateDescriptor<>("amounts", Types.LONG));
      byCategory = getRuntimeContext().getMapState(new MapStateDescriptor<>("by_category", Types.STRING, Types.LONG));
    }

    @Override
    public void processElement(Tuple4<Long, Long, String, Long> event, Context context, Collector<String> out)
        throws Exception {
      total.update((total.value() == null ? 0 : total.value()) + event.f1);
      amounts.add(event.f1);
      Long before = byCategory.get(event.f2);
      byCategory.put(event.f2, (before == null ? 0 : before) + event.f1);
      context.timerService().registerEventTimeTimer((event.f3 / 5000 + 1) * 5000 + 500);
    }

    @Override
    public void onTimer(long time, OnTimerContext context, Collector<String> out) throws Exception {
      int count = 0;
      for (Long amount : amounts.get()) {
        count++;
      }
      Long first = byCategory.get("c0");
      out.collect("timer," + context.getCurrentKey() + "," + time + "," + total.value() + "," + count + "," + first);
    }
  }

  /** Tells of the sum of a window. */
  public static class Told extends ProcessWindowFunction<Tuple4<Long, Long, String, Long>, String, Long, TimeWindow> {
    @Override
    public void process(
        Long key, Context context, Iterable<Tuple4<Long, Long, String, Long>> sums, Collector<String> out) {
      out.collect("window," + key + "," + context.window().getEnd() + "," + sums.iterator().next().f1);
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
    SingleOutputStreamOperator<Tuple4<Long, Long, String, Long>> events =
        environment
            .addSource(new Events(), "events", Types.TUPLE(Types.LONG, Types.LONG, Types.STRING, Types.LONG))
            .setParallelism(1)
            .uid("events");
    events.keyBy(event -> event.f0, Types.LONG).process(new Totals()).uid("totals").addSink(new Kept()).uid("kept");
    events
        .keyBy(event -> event.f0, Types.LONG)
        .window(TumblingEventTimeWindows.of(java.time.Duration.ofSeconds(7)))
        .reduce((one, other) -> Tuple4.of(one.f0, one.f1 + other.f1, one.f2, one.f3), new Told())
        .uid("windows")
        .addSink(new Kept())
        .uid("kept-windows");
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
    configuration.setString("execution.checkpointing.dir", Files.createTempDirectory("half").toUri().toString());
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
    Files.write(out.resolve("first_half.csv"), run(EVENTS / 2, out.resolve("savepoints")), StandardCharsets.UTF_8);
    Files.write(out.resolve("whole.csv"), run(EVENTS, null), StandardCharsets.UTF_8);
    System.exit(0);
  }
}
