/* Works in libsqlite3 and libz: a table that is filled, searched and compressed. */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static unsigned long sum;

static int row(void *text, int columns, char **values, char **names) {
    (void)names;
    for (int i = 0; i < columns; i++) {
        size_t used = strlen(text);
        if (used + 64 < 1 << 16) snprintf((char *)text + used, 64, "%s;", values[i] ? values[i] : "");
    }
    return 0;
}

static void run(sqlite3 *db, const char *query, char *text) {
    if (sqlite3_exec(db, query, row, text, NULL) != SQLITE_OK) {
        fprintf(stderr, "%s: %s\n", query, sqlite3_errmsg(db));
        exit(1);
    }
}

int main(int argc, char **argv) {
    static char text[1 << 16];
    static unsigned char packed[1 << 17];
    int rounds = argc > 1 ? atoi(argv[1]) : 1;
    for (int round = 0; round < rounds; round++) {
        sqlite3 *db;
        if (sqlite3_open(":memory:", &db) != SQLITE_OK) return 1;
        text[0] = 0;
        run(db, "create table t(a integer primary key, b text); create index i on t(b); begin", text);
        sqlite3_stmt *insert;
        sqlite3_prepare_v2(db, "insert into t values(?, ?)", -1, &insert, NULL);
        for (int i = 0; i < 2000; i++) {
            char value[32];
            int len = snprintf(value, sizeof value, "%d", i * i % 7919);
            sqlite3_bind_int(insert, 1, i);
            sqlite3_bind_text(insert, 2, value, len, SQLITE_TRANSIENT);
            sqlite3_step(insert);
            sqlite3_reset(insert);
        }
        sqlite3_finalize(insert);
        run(db, "commit; select count(*), sum(a) from t where b like '1%'; select a, b from t order by b limit 900", text);
        sqlite3_close(db);
        uLongf len = sizeof packed;
        if (compress2(packed, &len, (unsigned char *)text, strlen(text), 6) != Z_OK) return 1;
        sum += len + crc32(0, packed, (uInt)len);
    }
    printf("%lu\n", sum);
    return 0;
}
