import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.*; // Exit, until Kafka 4.3
import org.apache.kafka.common.utils.internals.*; // Exit, from Kafka 4.4

/**
 * Runs Kafka's own command-line tools one after another in one JVM, because a JVM costs more than the tool.
 *
 * <p>A line in: {"main": class, "args": [...], "stdin": text}. A line out: {"code": n, "out": text, "err": text}.
 * A tool that exits is stopped there, and what it registered for the end of its JVM runs then.
 */
public final class Toolbox {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final List<Runnable> HOOKS = new ArrayList<>();

    private static final class Ended extends Error {
        private final int code;

        Ended(int code, String message) {
            super(message, null, false, false);
            this.code = code;
        }
    }

    private static Ended ended;

    private static void end(int code, String message) {
        // Tools catch Throwable around everything and exit once more: the first exit counts.
        ended = ended == null ? new Ended(code, message) : ended;
        throw ended;
    }

    public static void main(String[] ignored) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = System.out;
        Exit.setExitProcedure(Toolbox::end);
        Exit.setHaltProcedure(Toolbox::end);
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.println(JSON.writeValueAsString(run(JSON.readTree(line))));
            answers.flush();
        }
    }

    private static Map<String, Object> run(JsonNode request) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        System.setIn(new ByteArrayInputStream(request.get("stdin").asText().getBytes(StandardCharsets.UTF_8)));
        String[] args = JSON.convertValue(request.get("args"), String[].class);
        ended = null;
        int code = 0;
        try {
            Class.forName(request.get("main").asText()).getMethod("main", String[].class).invoke(null, (Object) args);
        } catch (InvocationTargetException stopped) {
            code = 1;
            if (!(stopped.getCause() instanceof Ended)) {
                stopped.getCause().printStackTrace();
            }
        }
        HOOKS.forEach(Runnable::run);
        HOOKS.clear();
        if (ended != null) {
            code = ended.code;
            if (ended.getMessage() != null) {
                System.err.println(ended.getMessage());
            }
        }
        System.out.flush();
        System.err.flush();
        return Map.of(
                "code", code,
                "out", out.toString(StandardCharsets.UTF_8),
                "err", err.toString(StandardCharsets.UTF_8));
    }
}
