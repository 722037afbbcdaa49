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
    condition TEXT NOT NULL,                     -- plain or loaded
    replicate INTEGER NOT NULL,
    model     TEXT NOT NULL,                     -- hash of the model's weights, or of what names it
    fork_of   TEXT REFERENCES trials (key)       -- the clean chain from whose first message this one goes on, altered
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
    generated_tokens INTEGER NOT NULL,           -- analysis and end token included
    drafted_tokens   INTEGER NOT NULL,           -- guessed ahead of being drawn
    accepted_tokens  INTEGER NOT NULL,           -- of these, drawn
    analysis         TEXT,                       -- what was cut off before the message was passed on
    analysis_tokens  INTEGER NOT NULL,           -- of the generated ones, those of the analysis
    unsplit          INTEGER NOT NULL,           -- an analysis was asked for, and no end of it found
    seconds          REAL NOT NULL,              -- from submission to the last token
    ended            REAL NOT NULL,              -- Unix time in seconds
    seed             INTEGER NOT NULL,
    PRIMARY KEY (trial, hop)
) STRICT;

-- Where a fork was altered: written before its first hop, which is hop 2.
CREATE TABLE injections (
    trial    TEXT PRIMARY KEY REFERENCES trials (key), -- the altered chain
    eligible INTEGER NOT NULL,                   -- facts whose value stood verbatim in the clean chain's first message
    facts    INTEGER NOT NULL,                   -- facts of the item
    fact     TEXT,                               -- id of the altered one; NULL where none was eligible: the chain has no hops
    message  TEXT                                -- the altered message
) STRICT;

-- What scores messages by reading them.
CREATE TABLE judges (
    id      INTEGER PRIMARY KEY,
    name    TEXT NOT NULL,                       -- as it was asked for, such as local:smollm2-135m
    key     TEXT NOT NULL UNIQUE,                -- hash of all that shapes an answer: identity, prompts, settings
    spec    TEXT NOT NULL                        -- JSON: the same, in full
) STRICT;

-- What a judge said of a text, found by content: the same text is never asked about twice.
CREATE TABLE judgements (
    judge            INTEGER NOT NULL REFERENCES judges (id),
    content          TEXT NOT NULL,              -- hash of the message and the questions
    outcome          TEXT NOT NULL,              -- answered, or why there is no answer
    reply            TEXT,                       -- the last reply, as it came
    detail           TEXT,                       -- what is wrong with it
    attempts         INTEGER NOT NULL,
    prompt_tokens    INTEGER NOT NULL,           -- all attempts
    cached_tokens    INTEGER NOT NULL,
    generated_tokens INTEGER NOT NULL,
    seconds          REAL NOT NULL,
    ended            REAL NOT NULL,              -- Unix time in seconds
    PRIMARY KEY (judge, content)
) STRICT;

-- White-box recall: log-probabilities that the relay's own model gives to the values of a fact after the message.
CREATE TABLE white_box (
    trial      TEXT NOT NULL,
    hop        INTEGER NOT NULL,
    fact       TEXT NOT NULL,
    truth      REAL NOT NULL,                    -- natural logarithm, all tokens of the value
    distractor REAL NOT NULL,
    PRIMARY KEY (trial, hop, fact),
    FOREIGN KEY (trial, hop) REFERENCES hops (trial, hop)
) STRICT;

-- Hops that ended without a message. None is a wrong answer, none is scored. A
-- failure whose hop stands in `hops` was made good by a later session.
CREATE TABLE failures (
    id     INTEGER PRIMARY KEY,
    trial  TEXT NOT NULL REFERENCES trials (key),
    hop    INTEGER NOT NULL,
    kind   TEXT NOT NULL,                        -- the kind of the error
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
