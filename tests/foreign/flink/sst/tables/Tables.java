import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.TreeSet;
import org.rocksdb.*;

/**
 * Writes the tables beside it and what RocksDB reads from them:
 *
 * <p>javac -cp flink-dist.jar Tables.java && java -cp flink-dist.jar:. Tables FOLDER
 *
 * <p>Which levels the tables of `lists-levels` are in is a matter of time; that folder is one of 150, chosen because a
 * deletion of a range reaches beyond its table there and would delete newer entries.
 */
public class Tables {
    public static void main(String[] arguments) throws Exception {
        RocksDB.loadLibrary();
        Path root = Path.of(arguments[0]);
        lists(root, "lists-snappy", CompressionType.SNAPPY_COMPRESSION, ChecksumType.kxxHash64, IndexType.kBinarySearch, 5);
        lists(root, "lists-partitioned-lz4", CompressionType.LZ4_COMPRESSION, ChecksumType.kCRC32c, IndexType.kTwoLevelIndexSearch, 4);
        lists(root, "lists-first-key-zstd", CompressionType.ZSTD_COMPRESSION, ChecksumType.kXXH3, IndexType.kBinarySearchWithFirstKey, 5);
        lists(root, "lists-legacy-none", CompressionType.NO_COMPRESSION, ChecksumType.kCRC32c, IndexType.kBinarySearch, 0);
        lists(root, "lists-hash-zlib", CompressionType.ZLIB_COMPRESSION, ChecksumType.kxxHash, IndexType.kHashSearch, 2);
        lists(root, "lists-levels", CompressionType.SNAPPY_COMPRESSION, ChecksumType.kXXH3, IndexType.kTwoLevelIndexSearch, 5);
        ingested(root);
    }

    static Options options(CompressionType compression, ChecksumType checksum, IndexType index, int version) {
        BlockBasedTableConfig table = new BlockBasedTableConfig()
                .setBlockSize(256)
                .setMetadataBlockSize(128)
                .setChecksumType(checksum)
                .setIndexType(index)
                .setFormatVersion(version);
        Options options = new Options()
                .setCreateIfMissing(true)
                .setMergeOperatorName("stringappendtest")
                .setCompressionType(compression)
                .setDisableAutoCompactions(true);
        options.useFixedLengthPrefixExtractor(1);
        options.setTableFormatConfig(table);
        return options;
    }

    static void lists(Path root, String name, CompressionType compression, ChecksumType checksum, IndexType index, int version)
            throws Exception {
        Random random = new Random(name.hashCode());
        Path folder = Files.createTempDirectory("tables");
        Options options = options(compression, checksum, index, version);
        boolean levels = name.equals("lists-levels");
        if (levels) {
            options.setDisableAutoCompactions(false)
                    .setTargetFileSizeBase(4096)
                    .setMaxBytesForLevelBase(16384)
                    .setMaxBytesForLevelMultiplier(3)
                    .setLevel0FileNumCompactionTrigger(2)
                    .setWriteBufferSize(65536);
        }
        try (RocksDB db = RocksDB.open(options, folder.toString())) {
            for (int step = 0; step < (levels ? 400 : 60); step++) {
                int what = random.nextInt(12);
                if (what == 0) {
                    db.flush(new FlushOptions());
                } else if (what == 1 && random.nextInt(3) == 0) {
                    db.flush(new FlushOptions());
                    db.compactRange();
                } else if (what == 2) {
                    byte[] start = key(random, 8);
                    byte[] end = key(random, 8);
                    if (random.nextBoolean()) {
                        end = start.clone();
                        end[4] = (byte) 255;
                    }
                    if (Arrays.compareUnsigned(start, end) < 0) {
                        db.deleteRange(start, end);
                    }
                } else if (what == 3) {
                    for (int n = 0; n < 30; n++) {
                        db.delete(key(random, 4));
                    }
                } else if (what == 4) {
                    for (int n = 0; n < 30; n++) {
                        db.put(key(random, 4), value(random));
                    }
                } else {
                    for (int n = 0; n < 60; n++) {
                        db.merge(key(random, 4), value(random));
                    }
                }
            }
            db.flush(new FlushOptions());
            keep(root.resolve(name), db, folder);
        }
    }

    static void ingested(Path root) throws Exception {
        Random random = new Random(5);
        Path folder = Files.createTempDirectory("tables");
        Options options = options(CompressionType.SNAPPY_COMPRESSION, ChecksumType.kXXH3, IndexType.kBinarySearch, 5);
        try (RocksDB db = RocksDB.open(options, folder.toString())) {
            for (int n = 0; n < 200; n++) {
                db.put(key(random, 4), "before".getBytes());
            }
            db.flush(new FlushOptions());
            for (int file = 0; file < 2; file++) {
                TreeSet<byte[]> keys = new TreeSet<>(Arrays::compareUnsigned);
                for (int n = 0; n < 60; n++) {
                    keys.add(key(random, 4));
                }
                String path = folder + "/apart" + file + ".sst";
                try (SstFileWriter writer = new SstFileWriter(new EnvOptions(), options)) {
                    writer.open(path);
                    int row = 0;
                    for (byte[] key : keys) {
                        row++;
                        if (row % 5 == 0) {
                            writer.delete(key);
                        } else if (row % 7 == 0) {
                            writer.merge(key, "more".getBytes());
                        } else {
                            writer.put(key, ("apart" + file).getBytes());
                        }
                    }
                    writer.finish();
                }
                // Writes the sequence number into the file, and not only into the MANIFEST.
                db.ingestExternalFile(List.of(path), new IngestExternalFileOptions().setWriteGlobalSeqno(true));
                for (int n = 0; n < 40; n++) {
                    db.merge(key(random, 4), "after".getBytes());
                }
                db.flush(new FlushOptions());
            }
            keep(root.resolve("ingested"), db, folder);
        }
    }

    static byte[] key(Random random, int groups) {
        return new byte[] {(byte) random.nextInt(groups), 0, 0, (byte) (random.nextInt(300) >> 8), (byte) random.nextInt(256)};
    }

    static byte[] value(Random random) {
        byte[] value = new byte[random.nextInt(4) == 0 ? 0 : random.nextInt(9)];
        for (int n = 0; n < value.length; n++) {
            value[n] = (byte) (97 + random.nextInt(3));
        }
        return value;
    }

    static void keep(Path kept, RocksDB db, Path folder) throws IOException, RocksDBException, InterruptedException {
        Files.createDirectories(kept);
        db.pauseBackgroundWork();
        for (LiveFileMetaData file : db.getLiveFilesMetaData()) {
            Files.copy(Path.of(file.path() + file.fileName()), kept.resolve(file.fileName().substring(1)));
        }
        try (var files = Files.newDirectoryStream(folder, "MANIFEST-*")) {
            for (Path file : files) {
                Files.copy(file, kept.resolve(file.getFileName()));
            }
        }
        try (DataOutputStream truth = new DataOutputStream(Files.newOutputStream(kept.resolve("truth.bin")));
                RocksIterator rows = db.newIterator()) {
            for (rows.seekToFirst(); rows.isValid(); rows.next()) {
                truth.writeInt(rows.key().length);
                truth.write(rows.key());
                truth.writeInt(rows.value().length);
                truth.write(rows.value());
            }
        }
        db.continueBackgroundWork();
    }
}
