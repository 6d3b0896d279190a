-- The tables of usage, for SQLite and PostgreSQL alike. Times are milliseconds since 1970 unless they are hours.

-- A node, and up to where its journal is accounted. It changes in the transaction that adds to the rows, so each event counts once.
CREATE TABLE node (
  id       BIGINT PRIMARY KEY,
  name     TEXT NOT NULL, -- may change, and several may have one
  segment  BIGINT NOT NULL,
  position BIGINT NOT NULL,
  begun    BIGINT NOT NULL,
  seen     BIGINT NOT NULL, -- 0: never
  boot     TEXT NOT NULL
);

CREATE TABLE gpu (
  node         BIGINT NOT NULL,
  uuid         TEXT NOT NULL,
  idx          BIGINT NOT NULL,
  model        TEXT NOT NULL,
  memory_bytes BIGINT NOT NULL, -- 0: not known
  replicas     BIGINT NOT NULL,
  whole_bytes  BIGINT NOT NULL, -- of a MIG instance: all memory of its GPU
  PRIMARY KEY (node, uuid)
);

CREATE TABLE claim (
  node       BIGINT NOT NULL,
  id         TEXT NOT NULL,
  created    BIGINT NOT NULL,
  owner      TEXT NOT NULL,
  until      BIGINT NOT NULL, -- accounted up to then
  boot       TEXT NOT NULL,
  down       BIGINT NOT NULL,
  reserved   BOOLEAN NOT NULL,
  ended      BOOLEAN NOT NULL,
  final      BOOLEAN NOT NULL,
  namespace  TEXT NOT NULL,
  job        TEXT NOT NULL,
  parent_job TEXT NOT NULL,
  task_group TEXT NOT NULL,
  task       TEXT NOT NULL,
  allocation TEXT NOT NULL,
  container  TEXT NOT NULL,
  verified   BOOLEAN NOT NULL,
  peak_bytes BIGINT NOT NULL,
  total_ms   BIGINT NOT NULL, -- of all its hours, also of those that were removed since
  gib_ms     DOUBLE PRECISION NOT NULL,
  gpu_ms     DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (node, id, created)
);
CREATE INDEX claim_open ON claim (node) WHERE NOT ended;

-- What claims had reserved in an hour. Bytes and share are part of the key, so that a sum is one of whole milliseconds.
CREATE TABLE hour (
  hour        BIGINT NOT NULL, -- hours since 1970
  node        BIGINT NOT NULL,
  claim       TEXT NOT NULL,
  created     BIGINT NOT NULL, -- when the claim was made
  gpu         TEXT NOT NULL,
  mode        TEXT NOT NULL,
  bytes       BIGINT NOT NULL,
  share       BIGINT NOT NULL, -- billionths of the GPU; -1: not known
  reserved_ms BIGINT NOT NULL,
  observed_ms BIGINT NOT NULL,
  used_gib_ms DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (hour, node, claim, created, gpu, mode, bytes, share)
);

CREATE TABLE gap (
  node   BIGINT NOT NULL,
  since  BIGINT NOT NULL,
  until  BIGINT NOT NULL,
  reason TEXT NOT NULL,
  PRIMARY KEY (node, since, reason)
);
