import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** What a handler does with a record, as benchmarks/modes/work.py has it. Arguments are name=value. */
final class Work {
    final Map<String, String> told = new HashMap<>();
    private final Journal journal;
    private final double sleep;
    private final int slowEvery;
    private final double slow;
    private final double jitter;
    private final int failEvery;
    private final boolean quiet;
    private final Set<Integer> failed = ConcurrentHashMap.newKeySet();

    Work(String[] args) throws Exception {
        for (String arg : args) {
            int at = arg.indexOf('=');
            told.put(arg.substring(0, at), arg.substring(at + 1));
        }
        journal = new Journal(told.get("journal"));
        sleep = Double.parseDouble(told.get("sleep"));
        slowEvery = number("slowEvery");
        slow = Double.parseDouble(told.get("slow"));
        jitter = Double.parseDouble(told.get("jitter"));
        failEvery = number("failEvery");
        quiet = sleep == 0 && slowEvery == 0 && jitter == 0 && failEvery == 0;
    }

    int number(String name) {
        return Integer.parseInt(told.get(name));
    }

    /** Whether it succeeded. */
    boolean handle(byte[] value, int member) throws InterruptedException {
        int record = ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN).getInt();
        if (quiet) {
            journal.note(record, member, Journal.ENDED);
            return true;
        }
        journal.note(record, member, Journal.BEGUN);
        double time = time(record);
        if (time > 0 && !journal.hurried()) {
            Thread.sleep((long) time, (int) ((time - (long) time) * 1e6));
        }
        if (failEvery > 0 && record % failEvery == failEvery / 2 && failed.add(record)) {
            journal.note(record, member, Journal.FAILED);
            return false;
        }
        journal.note(record, member, Journal.ENDED);
        return true;
    }

    private double time(int record) {
        if (slowEvery > 0 && record % slowEvery == slowEvery / 2) {
            return slow;
        }
        return sleep + (record * 2654435761L % 997 / 997.0) * jitter;
    }
}
