# This file is sourced before pip runs, because pip would try an unreachable index again for each package, for minutes. If
# an index cannot be reached, only the wheels in /wheels are used. Without wheels, the build ends with a message.
: "${WHEELS:=/wheels}"
asked() {  # INDEX_OPTIONS: print the index's URL if it cannot be reached; print nothing if pip is older than 21.2
    python3 -m pip index --help >/dev/null 2>&1 || return 0
    python3 -m pip --disable-pip-version-check index versions pip -vv --retries 0 --timeout 8 "$@" 2>&1 \
        | sed -n 's/^ *Could not fetch URL \([^ ]*\/\)pip\/: \(connection error\|timed out\|There was a problem confirming\).*/\1/p' \
        | head -n 1
}
for index in "" ${TORCH_INDEX:-}; do
    unreached=$(asked ${index:+--index-url "$index"})
    if [ -z "$unreached" ]; then
        continue
    elif ls "$WHEELS"/*.whl >/dev/null 2>&1; then
        echo "protofleet: $unreached cannot be reached: its packages are taken from the given folder of wheels" >&2
        if [ -n "$index" ]; then TORCH_INDEX=; else export PIP_NO_INDEX=1; fi
    else
        echo "protofleet: $unreached cannot be reached from the build, and the build needs its packages: connect this machine," \
            "set the proxy of docker (HTTPS_PROXY), or give a folder with all packages (make ... WHEELS=folder)" >&2
        exit 1
    fi
done
