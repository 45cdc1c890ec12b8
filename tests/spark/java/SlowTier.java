import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/**
 * A remote tier in a folder. Until a segment was read `slow.reads` times, each read of it takes `sleep.ms`: what is read
 * often is kept near. Where every read took longer than Kafka waits for one, nobody could ever read anything.
 */
public class SlowTier implements RemoteStorageManager {
    private Path folder;
    private long sleepMs;
    private int slowReads;
    private final Map<Path, AtomicInteger> reads = new ConcurrentHashMap<>();

    @Override
    public void configure(Map<String, ?> configs) {
        folder = Path.of(configs.get("folder").toString());
        sleepMs = Long.parseLong(configs.get("sleep.ms").toString());
        slowReads = Integer.parseInt(configs.get("slow.reads").toString());
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata segment, LogSegmentData data)
            throws RemoteStorageException {
        try {
            Path place = Files.createDirectories(place(segment));
            Files.copy(data.offsetIndex(), place.resolve(IndexType.OFFSET.name()));
            Files.copy(data.timeIndex(), place.resolve(IndexType.TIMESTAMP.name()));
            Files.copy(data.producerSnapshotIndex(), place.resolve(IndexType.PRODUCER_SNAPSHOT.name()));
            if (data.transactionIndex().isPresent())
                Files.copy(data.transactionIndex().get(), place.resolve(IndexType.TRANSACTION.name()));
            ByteBuffer epochs = data.leaderEpochIndex();
            byte[] bytes = new byte[epochs.remaining()];
            epochs.get(bytes);
            Files.write(place.resolve(IndexType.LEADER_EPOCH.name()), bytes);
            Files.copy(data.logSegment(), place.resolve("log"));
            return Optional.empty();
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start) throws RemoteStorageException {
        return fetchLogSegment(segment, start, Integer.MAX_VALUE - 1);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start, int end)
            throws RemoteStorageException {
        try {
            if (reads.computeIfAbsent(place(segment), path -> new AtomicInteger()).getAndIncrement() < slowReads)
                Thread.sleep(sleepMs);
            byte[] log = Files.readAllBytes(place(segment).resolve("log"));
            return new ByteArrayInputStream(Arrays.copyOfRange(log, start, Math.min(log.length, end + 1)));
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new RemoteStorageException("interrupted", error);
        }
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType type) throws RemoteStorageException {
        try {
            return new ByteArrayInputStream(Files.readAllBytes(place(segment).resolve(type.name())));
        } catch (IOException error) {
            throw new RemoteResourceNotFoundException(error);
        }
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) {
    }

    @Override
    public void close() {
    }

    private Path place(RemoteLogSegmentMetadata segment) {
        return folder.resolve(segment.remoteLogSegmentId().id().toString());
    }
}
