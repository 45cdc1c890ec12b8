import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicLong;

/** Counts records; when the last one came it prints rate and processor time as a line of JSON and ends the process. */
final class Meter {
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final long total;
    private final AtomicLong seen = new AtomicLong();
    private volatile long firstAt;
    private volatile long cpuThen;

    Meter(long total) {
        this.total = total;
    }

    void hit() {
        long number = seen.incrementAndGet();
        if (number == 1) {
            firstAt = System.nanoTime();
            cpuThen = SYSTEM.getProcessCpuTime();
        } else if (number == total) {
            double seconds = (System.nanoTime() - firstAt) / 1e9;
            double cpu = (SYSTEM.getProcessCpuTime() - cpuThen) / 1e3;
            System.out.printf(
                    Locale.ROOT, "{\"rate\": %f, \"cpu_us\": %f}%n", (total - 1) / seconds, cpu / total);
            System.out.flush();
            Runtime.getRuntime().halt(0);
        }
    }
}
