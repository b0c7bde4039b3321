CREATE TABLE content (
    md5 TEXT PRIMARY KEY CHECK (length(md5) = 32 AND md5 NOT GLOB '*[^0-9a-f]*'),
    size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
    format TEXT NOT NULL,
    width INTEGER NOT NULL CHECK (width >= 0),
    height INTEGER NOT NULL CHECK (height >= 0),
    phash TEXT CHECK (length(phash) = 16 AND phash NOT GLOB '*[^0-9a-f]*'),  -- NULL: a blank picture
    greys BLOB NOT NULL CHECK (length(greys) IN (0, 1024)),  -- of which it is made; empty: cannot be decoded
    taken_at TEXT,          -- ISO 8601, local time
    camera TEXT,
    exif_fields INTEGER NOT NULL,
    exposure TEXT,          -- JSON; NULL: unknown
    inventory TEXT NOT NULL -- what the file holds beside its pixels, packed
) STRICT;
CREATE TABLE file (
    id INTEGER PRIMARY KEY,
    path BLOB NOT NULL UNIQUE,  -- bytes, relative to the library: a name need not be UTF-8
    size_bytes INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('ok', 'unreadable', 'inaccessible', 'missing')),
    reason TEXT,                -- why it is not ok
    md5 TEXT REFERENCES content (md5),
    CHECK (status <> 'ok' OR md5 IS NOT NULL)
) STRICT;
CREATE INDEX file_md5 ON file (md5);
CREATE TABLE model (
    id INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    dim INTEGER NOT NULL CHECK (dim > 0),
    is_random INTEGER           -- 1: untrained weights, for study only; NULL: the server does not say
) STRICT;
CREATE TABLE embedding (
    model INTEGER NOT NULL REFERENCES model (id),
    md5 TEXT NOT NULL REFERENCES content (md5),
    vector BLOB NOT NULL,       -- float32, little endian, unit length
    PRIMARY KEY (model, md5)
) STRICT;
CREATE TABLE apple_photo (
    file INTEGER PRIMARY KEY REFERENCES file (id) ON DELETE CASCADE,
    uuid TEXT NOT NULL,
    original_filename TEXT
) STRICT;
CREATE TABLE setting (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
