-- One run of a study. A row is written once and never changed; judges and
-- reports add tables of their own and read these.

-- What is done, in full: written before any work.
CREATE TABLE run (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    plan    TEXT NOT NULL,                       -- JSON, every default filled in
    created TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
) STRICT;

-- The items themselves, so that scoring and showing need no generator and no corpus file.
CREATE TABLE items (
    position INTEGER PRIMARY KEY,
    id       TEXT NOT NULL UNIQUE,
    item     TEXT NOT NULL                       -- JSON: brief and facts
) STRICT;

-- One row a chain, in the order of the plan.
CREATE TABLE trials (
    position  INTEGER PRIMARY KEY,
    key       TEXT NOT NULL UNIQUE,              -- hash of what the trial is
    item      TEXT NOT NULL REFERENCES items (id),
    format    TEXT NOT NULL,
    condition TEXT NOT NULL,
    replicate INTEGER NOT NULL
) STRICT;

-- The journal. A hop is in it or it is not: one transaction each.
CREATE TABLE hops (
    trial            TEXT NOT NULL REFERENCES trials (key),
    hop              INTEGER NOT NULL CHECK (hop >= 1),
    message          TEXT NOT NULL,              -- as it was passed on
    finish           TEXT NOT NULL CHECK (finish IN ('stop', 'length')),
    cut_in_char      INTEGER NOT NULL,           -- the limit fell inside a character
    invalid          INTEGER NOT NULL,           -- the format's parser refused it
    prompt_tokens    INTEGER NOT NULL,
    cached_tokens    INTEGER NOT NULL,
    generated_tokens INTEGER NOT NULL,
    seconds          REAL NOT NULL,              -- from submission to the last token
    ended            REAL NOT NULL,              -- Unix time in seconds
    seed             INTEGER NOT NULL,
    PRIMARY KEY (trial, hop)
) STRICT;

-- Hops that ended without a message. None is a wrong answer, none is scored. A
-- failure whose hop stands in `hops` was made good by a later session.
CREATE TABLE failures (
    id     INTEGER PRIMARY KEY,
    trial  TEXT NOT NULL REFERENCES trials (key),
    hop    INTEGER NOT NULL,
    kind   TEXT NOT NULL,                        -- too_long, invalid, not_a_number, backend
    detail TEXT NOT NULL,
    ended  REAL NOT NULL
) STRICT;

-- Each time a process worked on the run: facts that cannot change a message.
CREATE TABLE sessions (
    id      INTEGER PRIMARY KEY,
    started TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')),
    facts   TEXT NOT NULL                        -- JSON: batch, threads, model as it was named, …
) STRICT;

-- Written when every chain has come to its end. Without a row, the run can be resumed.
CREATE TABLE final (
    id       INTEGER PRIMARY KEY,
    finished TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')),
    chains   INTEGER NOT NULL,
    failed   INTEGER NOT NULL
) STRICT;
