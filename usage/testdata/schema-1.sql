-- Up to where the journal is accounted, and when. It changes in the transaction that adds to the rows, so each event counts once.
CREATE TABLE watermark (
  id       INTEGER PRIMARY KEY CHECK (id = 1),
  segment  INTEGER NOT NULL,
  position INTEGER NOT NULL,
  begun    INTEGER NOT NULL, -- times are milliseconds since 1970
  seen     INTEGER NOT NULL,
  boot     TEXT NOT NULL
) STRICT;

CREATE TABLE gpu (
  uuid         TEXT PRIMARY KEY,
  idx          INTEGER NOT NULL,
  model        TEXT NOT NULL,
  memory_bytes INTEGER NOT NULL, -- 0: not known
  replicas     INTEGER NOT NULL
) STRICT;

CREATE TABLE claim (
  key        INTEGER PRIMARY KEY,
  id         TEXT NOT NULL,
  created    INTEGER NOT NULL,
  owner      TEXT NOT NULL,
  until      INTEGER NOT NULL, -- accounted up to then
  boot       TEXT NOT NULL,
  down       INTEGER NOT NULL,
  reserved   INTEGER NOT NULL,
  ended      INTEGER NOT NULL,
  final      INTEGER NOT NULL,
  namespace  TEXT NOT NULL,
  job        TEXT NOT NULL,
  parent_job TEXT NOT NULL,
  task_group TEXT NOT NULL,
  task       TEXT NOT NULL,
  allocation TEXT NOT NULL,
  container  TEXT NOT NULL,
  verified   INTEGER NOT NULL,
  peak_bytes INTEGER NOT NULL,
  total_ms   INTEGER NOT NULL, -- of all its hours, also of those that were removed since
  gib_ms     REAL NOT NULL,
  gpu_ms     REAL NOT NULL,
  UNIQUE (id, created)
) STRICT;
CREATE INDEX claim_open ON claim (key) WHERE ended = 0;

-- What claims had reserved in an hour. Bytes and share are part of the key, so that a sum is one of whole milliseconds.
CREATE TABLE hour (
  hour        INTEGER NOT NULL, -- hours since 1970
  claim       INTEGER NOT NULL REFERENCES claim (key),
  gpu         TEXT NOT NULL,
  mode        TEXT NOT NULL,
  bytes       INTEGER NOT NULL,
  share       INTEGER NOT NULL, -- billionths of the GPU; -1: not known
  reserved_ms INTEGER NOT NULL,
  observed_ms INTEGER NOT NULL,
  used_gib_ms REAL NOT NULL,
  PRIMARY KEY (hour, claim, gpu, mode, bytes, share)
) STRICT, WITHOUT ROWID;
CREATE INDEX hour_claim ON hour (claim);

CREATE TABLE gap (
  since  INTEGER NOT NULL,
  until  INTEGER NOT NULL,
  reason TEXT NOT NULL,
  PRIMARY KEY (since, reason)
) STRICT, WITHOUT ROWID;

PRAGMA user_version = 1;
