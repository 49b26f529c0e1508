set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    printf '%s' "$POSTGRES_PASSWORD" > /tmp/password
    initdb --encoding UTF8 --username "$POSTGRES_USER" --pwfile /tmp/password --auth-host scram-sha-256 --auth-local trust > /dev/null
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    printf 'CREATE DATABASE %s;\n' "$POSTGRES_DB" | postgres --single -j template1 > /dev/null
fi
exec postgres -c listen_addresses='*' -c unix_socket_directories=/tmp
