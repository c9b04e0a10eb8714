-- Inserts, indexes, joins, updates, deletes and a vacuum, whose answers do not depend on the allocator.
PRAGMA journal_mode = MEMORY;
PRAGMA cache_size = -200000;
CREATE TABLE t (id INTEGER PRIMARY KEY, k INTEGER, name TEXT, payload BLOB);
BEGIN;
INSERT INTO t
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ROWS)
SELECT i, (i * 7919) % ROWS, printf('name %d of %d', i, (i * 31) % 1000), zeroblob(i % 400) FROM n;
COMMIT;
CREATE INDEX by_key ON t (k);
CREATE INDEX by_name ON t (name, id);
SELECT count(*), sum(k), sum(length(payload)) FROM t;
SELECT count(*) FROM t a JOIN t b ON a.k = b.id WHERE a.name < b.name;
UPDATE t SET name = name || ' again', payload = zeroblob(length(payload) * 3) WHERE id % 3 = 0;
DELETE FROM t WHERE id % 5 = 0;
SELECT name, count(*) FROM t GROUP BY substr(name, -20) ORDER BY 2 DESC, 1 LIMIT 20;
SELECT sum(length(group_text)) FROM (SELECT group_concat(name) AS group_text FROM t GROUP BY k % 500);
CREATE TABLE u AS SELECT * FROM t ORDER BY payload DESC, name, id;
SELECT count(*), sum(id) FROM u;
VACUUM;
PRAGMA integrity_check;
