import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * Starts a job from a savepoint and prints how many seconds it takes from its submission to where its function with the
 * state is opened, after those of the same job with no state, and what the state holds of the keys 0 to 3 in all.
 */
public class FlinkRestore {
    static final AtomicLong OPENED = new AtomicLong();
    static final AtomicLong SUM = new AtomicLong();

    public static void main(String[] arguments) throws Exception {
        double[] seconds = new double[3];
        // The first job loads classes, the second says what a job takes that restores nothing.
        for (int job = 0; job < 3; job++) {
            long started = System.nanoTime();
            run(job < 2 ? "none" : arguments[0], arguments[1]);
            seconds[job] = (OPENED.get() - started) / 1e9;
        }
        System.out.println("restored " + seconds[1] + " " + seconds[2] + " " + SUM.get());
        System.exit(0);
    }

    static void run(String savepoint, String backend) throws Exception {
        Configuration configuration = new Configuration();
        configuration.setString("state.backend.type", backend);
        configuration.setString("execution.checkpointing.incremental", "true");
        configuration.setString("taskmanager.memory.managed.size", "256m");
        configuration.setString("pipeline.max-parallelism", "128");
        configuration.setString("rest.port", "0");
        if (!savepoint.equals("none")) {
            configuration.setString("execution.state-recovery.path", savepoint);
        }
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1, configuration);
        environment
                .fromSequence(0, 3)
                .keyBy(key -> key)
                .process(new Total())
                .setUidHash("000102030405060708090a0b0c0d0e0f")
                .sinkTo(new DiscardingSink<>());
        environment.execute();
    }

    static class Total extends KeyedProcessFunction<Long, Long, Long> {
        transient ValueState<Long> total;

        @Override
        public void open(OpenContext context) {
            OPENED.set(System.nanoTime());
            total = getRuntimeContext().getState(new ValueStateDescriptor<>("total", Long.class));
        }

        @Override
        public void processElement(Long key, Context context, Collector<Long> out) throws Exception {
            Long held = total.value();
            SUM.addAndGet(held == null ? 0 : held);
        }
    }
}
