CREATE TABLE dpfewshot_account (
    id INTEGER NOT NULL,
    dataset TEXT NOT NULL,
    epsilon BIGINT NOT NULL,
    delta BIGINT NOT NULL,
    relation TEXT NOT NULL,
    unit TEXT,
    partition TEXT,
    parallel BOOLEAN NOT NULL,
    renyi_order INTEGER,
    sums TEXT NOT NULL,
    events BIGINT NOT NULL,
    chain_tip TEXT NOT NULL,
    seal TEXT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT dpfewshot_account_amounts CHECK (epsilon > 0 AND delta > 0),
    UNIQUE (dataset)
);
CREATE TABLE dpfewshot_entry (
    id INTEGER NOT NULL,
    account_id INTEGER NOT NULL,
    scope TEXT,
    epsilon BIGINT NOT NULL,
    delta BIGINT NOT NULL,
    state TEXT NOT NULL,
    draws_left BIGINT,
    lease TEXT,
    progress TEXT,
    "plan" TEXT,
    run TEXT,
    stratum INTEGER,
    draws_hash TEXT,
    renyi BIGINT,
    PRIMARY KEY (id),
    CONSTRAINT dpfewshot_entry_amounts CHECK (epsilon >= 0 AND delta >= 0),
    CONSTRAINT dpfewshot_entry_state CHECK (state IN ('reserved', 'charged', 'settled', 'cancelled')),
    CONSTRAINT dpfewshot_entry_of_run UNIQUE (account_id, run, stratum),
    FOREIGN KEY(account_id) REFERENCES dpfewshot_account (id)
);
CREATE INDEX dpfewshot_entry_by_account ON dpfewshot_entry (account_id, "plan");
CREATE TABLE dpfewshot_history (
    account_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at TEXT NOT NULL,
    actor TEXT NOT NULL,
    act TEXT NOT NULL,
    entry BIGINT,
    scope TEXT,
    epsilon BIGINT,
    delta BIGINT,
    details TEXT NOT NULL,
    package_version TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL,
    renyi BIGINT,
    PRIMARY KEY (account_id, number),
    FOREIGN KEY(account_id) REFERENCES dpfewshot_account (id)
);
CREATE INDEX dpfewshot_history_by_entry ON dpfewshot_history (account_id, entry);
CREATE TABLE dpfewshot_migration (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT dpfewshot_migration_pkc PRIMARY KEY (version_num)
);
