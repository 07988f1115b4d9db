#!/bin/sh
# Create the namespace and register the search attributes of rollouts. Doing it again changes nothing.
set -eu

namespace=${NAMESPACE:-default}
until temporal operator cluster health >/dev/null 2>&1; do sleep 1; done

if ! temporal operator namespace describe --namespace "$namespace" >/dev/null 2>&1; then
    temporal operator namespace create --namespace "$namespace" --retention "${RETENTION:-90d}"
fi
# The frontend learns of a new namespace within seconds.
until temporal operator search-attribute list --namespace "$namespace" >/tmp/there 2>/dev/null; do sleep 1; done

grep -v '^#' /deploy/search-attributes.txt | while read -r name type; do
    [ -n "$name" ] || continue
    grep -qw "$name" /tmp/there || temporal operator search-attribute create --namespace "$namespace" --name "$name" --type "$type"
done
