import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * The job of `tools/bench backpressure` in Flink: sums of keys by a function that waits as long as its rate says. It
 * runs until it is killed, with a checkpoint each second, and tells of them at its REST address.
 *
 * <p>Arguments: rows a second of a slot's function; rows a second of the source, or 0 for no bound; slots; whether
 * checkpoints are unaligned; the port; the folder of checkpoints; the size of a network buffer. Flink has a fixed number
 * of those, so their size says how much waits.
 */
public class FlinkBackpressure {
    static final String TEXT = "0123456789".repeat(10);

    public static void main(String[] arguments) throws Exception {
        double rate = Double.parseDouble(arguments[0]);
        double given = Double.parseDouble(arguments[1]);
        int slots = Integer.parseInt(arguments[2]);
        Configuration configuration = new Configuration();
        configuration.setString("execution.checkpointing.unaligned.enabled", arguments[3]);
        configuration.setString("rest.port", arguments[4]);
        configuration.setString("execution.checkpointing.dir", "file://" + arguments[5]);
        configuration.setString("execution.checkpointing.interval", "1s");
        configuration.setString("execution.checkpointing.min-pause", "1s");
        configuration.setString("web.checkpoints.history", "100");
        // Slots in task managers of their own have channels through the network, as in a cluster.
        configuration.setString("minicluster.number-of-taskmanagers", String.valueOf(slots));
        configuration.setString("taskmanager.numberOfTaskSlots", "1");
        configuration.setString("taskmanager.memory.network.min", "192m");
        configuration.setString("taskmanager.memory.network.max", "192m");
        configuration.setString("taskmanager.memory.segment-size", arguments[6]);
        configuration.setString("taskmanager.memory.managed.size", "16m");
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(slots, configuration);
        GeneratorFunction<Long, Tuple3<Long, Long, String>> rows =
                number -> Tuple3.of(number * 2_654_435_761L % 100_000, number, TEXT);
        RateLimiterStrategy bound = given > 0 ? RateLimiterStrategy.perSecond(given) : RateLimiterStrategy.noOp();
        environment
                .fromSource(
                        new DataGeneratorSource<>(
                                rows, Long.MAX_VALUE, bound, Types.TUPLE(Types.LONG, Types.LONG, Types.STRING)),
                        WatermarkStrategy.noWatermarks(),
                        "rows")
                .keyBy(row -> row.f0)
                .process(new Slow(rate))
                .sinkTo(new DiscardingSink<>());
        environment.execute();
    }

    static class Slow extends KeyedProcessFunction<Long, Tuple3<Long, Long, String>, Long> {
        private final double rate;
        private transient ValueState<Long> total;
        private transient long rows;

        Slow(double rate) {
            this.rate = rate;
        }

        @Override
        public void open(OpenContext context) {
            total = getRuntimeContext().getState(new ValueStateDescriptor<>("total", Long.class));
        }

        @Override
        public void processElement(Tuple3<Long, Long, String> row, Context context, Collector<Long> out)
                throws Exception {
            Long held = total.value();
            total.update((held == null ? 0 : held) + row.f1);
            // A single row's time is shorter than any wait.
            if (++rows % 1_000 == 0) {
                LockSupport.parkNanos((long) (1_000 / rate * 1e9));
            }
        }
    }
}
