-- From version 1, which had one node and numbered claims, to version 2.
DROP INDEX claim_open;
DROP INDEX hour_claim;
ALTER TABLE gpu RENAME TO gpu_1;
ALTER TABLE claim RENAME TO claim_1;
ALTER TABLE hour RENAME TO hour_1;
ALTER TABLE gap RENAME TO gap_1;
-- schema
INSERT INTO node SELECT 1, '', segment, position, begun, seen, boot FROM watermark;
INSERT INTO gpu SELECT 1, *, 0 FROM gpu_1;
INSERT INTO claim SELECT 1, id, created, owner, until, boot, down, reserved, ended, final, namespace, job, parent_job, task_group,
  task, allocation, container, verified, peak_bytes, total_ms, gib_ms, gpu_ms FROM claim_1;
INSERT INTO hour SELECT hour, 1, id, created, gpu, mode, bytes, share, reserved_ms, observed_ms, used_gib_ms
  FROM hour_1 JOIN claim_1 ON claim_1.key = hour_1.claim;
INSERT INTO gap SELECT 1, * FROM gap_1;
DROP TABLE hour_1;
DROP TABLE claim_1;
DROP TABLE gpu_1;
DROP TABLE gap_1;
DROP TABLE watermark;
