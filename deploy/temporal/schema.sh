#!/bin/sh
# Create Temporal's two databases and bring their schemas to this version. Doing it again changes nothing.
set -eu

sql() { temporal-sql-tool --plugin postgres12 --ep "$POSTGRES_SEEDS" -p "$DB_PORT" -u "$POSTGRES_USER" --db "$@"; }

for pair in temporal:temporal temporal_visibility:visibility; do
    database=${pair%%:*}
    schema=${pair##*:}
    sql "$database" create
    sql "$database" setup-schema -v 0.0 || echo "schema of $database exists"
    sql "$database" update-schema -d "/etc/temporal/schema/postgresql/v12/$schema/versioned"
done
