# The steps of a deployment. They run as root on the host, after the variables of roles.py. Each step can be
# interrupted anywhere and run again.
# $home and $shown belong to the service's user, and an attacker may control this user. Root does not read or write in
# these folders, because a link in them could lead root to any file. All work in these folders is done as that user.
set -eu
umask 022
cd /
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
builder=protofleet-build
other_role=$([ $role = device ] || echo $role) # empty for a device, because earlier releases know no other role
fail() { echo "$*" >&2; exit 1; }
try() { # problem, command ...: if the command fails, print the problem and the command's error line or last line
    problem=$1
    shift
    output=$("$@" 2>&1) || fail "$problem: $(printf '%s\n' "$output" | { grep -m 1 '^ERROR' || printf '%s\n' "$output" | grep . | tail -n 1; })$(unreachable "$output")"
}
# If pip cannot reach an index, its last error is "no such version". The reason is in the warning before it.
unreachable() { # the output of pip
    why=$(printf '%s\n' "$1" | sed -n "s/.*Retry(total=0,.* after connection broken by '\(.*\)': .*/\1/p" | tail -n 1 |
        sed "s/.*object at 0x[0-9a-f]*>: //; s/^[A-Za-z(0-9, ]*[\"']//; s/[\"'])*\$//")
    [ -z "$why" ] || printf '; an index cannot be reached: %s; set a mirror, a proxy or a certificate in /etc/pip.conf on that host' "$why"
}
as_user() { # user command ...: the command inherits neither root's lock nor this script's standard input
    name_of_user=$1
    shift
    env HOME=$home setpriv --reuid="$name_of_user" --regid="$name_of_user" --clear-groups --no-new-privs -- "$@" </dev/null 9>&-
}
as_device() { # release program ...: run as the service's user; a container changes to this user by itself
    installed=$top/releases/$1
    shift
    if [ -e "$installed/image" ]; then "$installed/bin/$@" </dev/null 9>&-; else as_user $user "$installed/bin/$@"; fi
}
read_as_user() { as_user $user timeout 5 head -c "$1" "$2" 2>/dev/null || :; } # bytes file: there is a time limit, because the file may be a pipe that never ends
# Start our program on the device. This form works with the releases of all versions.
probe='import sys; sys.path[:] = [p for p in sys.path if p]; import runpy
from importlib.util import find_spec
name = "protofleet.deploy.fleet.device.probe" if find_spec("protofleet") else "deploy.fleet.probe"
runpy.run_module(name, run_name="__main__", alter_sys=True)'
show() { systemctl show -p "$1" --value $name; }
# Replace a file atomically: the bytes are on the disk before the new file gets the name of the old file.
replace() { cp "$1" "$2.new"; chmod "$3" "$2.new"; sync "$2.new"; mv "$2.new" "$2"; }

settle() { :; } # This step only waits for the lock. An earlier step whose connection was lost may still use and remove uploaded files.

prepare() {
    id $user >/dev/null 2>&1 || useradd --system --user-group --home-dir $home --shell /usr/sbin/nologin $user
    id $builder >/dev/null 2>&1 || useradd --system --user-group --home-dir /nonexistent --shell /usr/sbin/nologin $builder
    install -d -m 0755 $top $top/releases $top/wheels $top/kept $top/blocked $top/incoming $etc
    install -d -m 0700 -o $user -g $user $home
    case $role in
        broker) # the broker's program comes from the host's packages, so there is nothing to build
            install -d -m 0755 $top/releases/0 $keys
            : >$top/releases/0/.complete
            as_user $user mkdir -p -m 0700 $home/data ;;
        coordinator) install -d -m 0755 $etc/records ;;
    esac
}

# No copied file is used before the signature of the federation's root is verified.
verified() { output=$(verifier | "$python" -I -S - "$@" 2>&1) || fail "$output"; }
pin() {
    verified roots $top/incoming $etc
    for file in allowed_signers roots; do replace $top/incoming/$file $etc/$file 0644; done
    rm -f $top/incoming/roots $top/incoming/*signers $top/incoming/*signers.sig
}
verify_release() { # release, and the two arguments of the step that installs it
    verified release "$top/wheels/$1" $etc "release $1"
    [ "$(cat "$top/wheels/$1/how")" = "$2
$3" ] || fail "the signed manifest of release $1 has other arguments for the installation; deploy again"
}
# A release is activated only if all its files are unchanged since the build.
list_files() {
    cd "$1"
    find . -type l -printf '%p %l\n' | sort
    find . -type f ! -path ./.files ! -path ./.complete -print0 | sort -z | xargs -0 -r sha256sum
}
mark_complete() { # release
    (list_files "$top/releases/$1") >"$top/releases/$1/.files"
    sync "$top/releases/$1" "$top/releases/$1/.files"
    touch "$top/releases/$1/.complete"
}
verify_unchanged() { # release; the oldest releases have no list of files
    built=$top/releases/$1
    [ -e "$built/.files" ] || return 0
    [ ! -e "$built/image" ] || [ "$(docker image inspect -f '{{.Id}}' "protofleet-release:$1")" = "$(cat "$built/image")" ] ||
        fail "the image of release $1 is not the image that was loaded; deploy again"
    other=$( (list_files "$built") | diff "$built/.files" - | sed -n '2s/^. *\([0-9a-f]\{64\}  \)\{0,1\}//p')
    [ -z "$other" ] || { rm -f "$built/.complete"; fail "$other in release $1 was changed since it was built; deploy again"; }
}

# Python contains a copy of pip for new environments. This copy runs from its own folder and is not installed.
find_pip() { # release
    for wheel in /usr/share/python-wheels/pip-*.whl; do [ -e "$wheel" ] && { echo "$wheel/pip"; return; }; done
    as_builder "$1/bin/python" -m ensurepip >/dev/null 2>&1 && echo "$1/lib/$(ls "$1/lib")/site-packages/pip"
}
as_builder() { env HOME=/nonexistent setpriv --reuid=$builder --regid=$builder --clear-groups --no-new-privs -- "$@" </dev/null; }
pip() { # arguments ...: runs pip in $release
    command=$1
    shift
    as_builder "$release/bin/python" "$pip" "$command" --disable-pip-version-check --no-input --no-cache-dir "$@"
}
# Only wheels are installed, so no code of a package runs during the installation.
wheels_alone() { pip install -q --no-warn-script-location --only-binary=:all: "$@"; }
locked() { wheels_alone --require-hashes --no-deps --find-links "$wheels" "$@"; }
from_index() { # install torch's build for CPUs if the index has it, else the default build and its CUDA packages
    [ ! -e "$wheels/cpu.txt" ] || locked -r "$wheels/cpu.txt" >/dev/null 2>&1 || :
    locked -r "$wheels/torch.txt" &&
        if pip check | grep -E '^torch .* requires (nvidia|cuda|triton)' >/dev/null; then locked -r "$wheels/cuda.txt"; fi &&
        locked -r "$wheels/device.txt" && { [ ! -e "$wheels/data.txt" ] || locked -r "$wheels/data.txt"; } && wheels_alone --no-index --no-deps "$wheels"/protofleet-*.whl
}
from_wheels() {
    case $1 in
        system) wheels_alone --no-index --no-deps --ignore-installed "$wheels"/*.whl ;;
        shipped) wheels_alone --no-index --find-links "$wheels" "$wheels"/protofleet-*.whl ;;
    esac
}

build() { # release python dependencies
    release=$top/releases/$1 wheels=$top/wheels/$1 python=$2 own='' what="the shipped packages"
    [ ! -e "$release/.complete" ] || return 0
    case $3 in
        system) own=--system-site-packages install=from_wheels ;;
        shipped) install=from_wheels ;;
        index) install=from_index what="the locked packages" ;;
        *) fail "software.dependencies is $3, which is none of index, shipped and system" ;;
    esac
    verify_release "$1" "$2" "$3"
    rm -rf "$release"
    install -d -m 0755 -o $builder -g $builder "$release"
    # shellcheck disable=SC2086
    try "python cannot make a virtual environment" as_builder "$2" -m venv --without-pip $own "$release"
    pip=$(find_pip "$release")
    try "pip cannot install $what" "$install" "$3"
    chown -hR root:root "$release"
    chmod -R a-st,u=rwX,go=rX "$release"
    try "the release does not run on this device" as_device "$1" python -c "$probe" self
    mark_complete "$1"
}

load() { # release image options; if the image's name is empty, the image was shipped as a file
    release=$top/releases/$1 shipped=$top/wheels/$1/image.tar
    [ ! -e "$release/.complete" ] || return 0
    verify_release "$1" "$2" "$3"
    rm -rf "$release"
    if [ -n "$2" ]; then
        try "docker cannot pull the image $2" docker pull -q "$2"
        image=$2
    else
        output=$(docker load -q -i "$shipped") || fail "docker cannot load the shipped image"
        image=${output#Loaded image: } image=${image#Loaded image ID: }
    fi
    install -d -m 0755 "$release" "$release/bin"
    docker tag "$image" "protofleet-release:$1"
    docker image inspect -f '{{.Id}}' "$image" >"$release/image"
    for program in protofleet python; do
        wrapper "$1" $program "$3" "$(cat "$release/image")" >"$release/bin/$program"
        chmod 755 "$release/bin/$program"
    done
    try "the image does not run on this device" "$release/bin/python" -c "$probe" self
    mark_complete "$1"
    rm -f "$shipped"
}

wrapper() { # release program options image-id: the container has few privileges; $PROTOFLEET_DOCKER comes from the unit
    cat <<END
#!/bin/sh
# shellcheck disable=SC2086
exec docker run --rm --label protofleet.release=$1 --network host --read-only --tmpfs /tmp --cap-drop ALL \\
    --security-opt no-new-privileges --pids-limit 256 --user "\$(id -u protofleet):\$(id -g protofleet)" \\
    --env HOME=/var/lib/protofleet --volume /var/lib/protofleet:/var/lib/protofleet \\
    --volume $etc:$etc:ro --volume $top/incoming:$top/incoming:ro --volume $top/wheels/$1:$top/wheels/$1:ro \\
    $3 \$PROTOFLEET_DOCKER --entrypoint $2 $4 "\$@"
END
}

request() { # release name federation
    as_user $user mkdir -p -m 0700 $keys
    as_device "$1" protofleet enrol request "$2" --federation "$3" --folder $keys >&2
    read_as_user 65536 $keys/pending/request
}

enrol() { # release root's-fingerprint
    as_device "$1" protofleet enrol install $top/incoming/approval --folder $keys --fingerprint "$2" >&2
}

# Install the broker's keys, which were made on the machine with the root. They are stored next to the keys in use. Then
# the link `current` changes to the new keys.
install_keys() { # name
    verified folder $top/incoming $etc "keys $1"
    set=set-$(date +%s)-$$
    restart=$(cmp -s $top/incoming/tls.crt $keys/current/tls.crt && cmp -s $top/incoming/roots $keys/current/roots || echo yes)
    install -d -m 0755 "$keys/$set"
    for file in ca.crt tls.crt tls.key crl.pem acl roots; do
        install -m 0600 -o $user -g $user "$top/incoming/$file" "$keys/$set/$file"
        sync "$keys/$set/$file"
    done
    rm -rf $top/incoming
    install -d -m 0755 $top/incoming
    used=$(readlink $keys/current || :)
    ln -sfn "$set" $keys/.current
    mv -T $keys/.current $keys/current
    sync $keys
    for old in "$keys"/set-*; do
        case $(basename "$old") in "$set" | "$used") ;; *) rm -rf "$old" ;; esac
    done
    [ "$(show ActiveState)" = active ] || return 0
    # After a reload, Mosquitto reads its lists again. It reads its certificate and its authorities only at its start.
    if [ -n "$restart" ]; then systemctl restart $name; else systemctl reload $name; fi
}
# Pack the runs of a coordinator into one file. The coordinator's user reads and writes the runs. The keys are not packed.
runs_as_user() { env HOME=$home setpriv --reuid=$user --regid=$user --clear-groups --no-new-privs -- "$@" 9>&-; }
pack() {
    install -d -m 0700 $top/copy
    runs_as_user tar -C $home -cf - runs </dev/null >$top/copy/runs.tar
    sync $top/copy/runs.tar
}
unpack() {
    as_user $user rm -rf $home/runs.before
    as_user $user sh -c '[ ! -e "$1/runs" ] || mv "$1/runs" "$1/runs.before"' sh $home
    runs_as_user tar -C $home -xf - <$top/copy/runs.tar || fail "the copy of the runs cannot be unpacked"
    rm -rf $top/copy
}
put_before_back() {
    as_user $user sh -c '[ ! -e "$1/runs.before" ] || { rm -rf "$1/runs" && mv "$1/runs.before" "$1/runs"; }' sh $home
}
go_on() { as_device "$1" protofleet go-on "$home/runs/$2" --from-round "$3" >&2; } # release run round
discard() { rm -rf $top/copy; }
forget() { # forget the federation of this host, so that the host can join another federation
    [ $role = broker ] || erase_keys
    systemctl disable -q --now $name 2>/dev/null || :
    rm -rf $etc/roots $etc/allowed_signers $top/kept $top/blocked
    [ $role != broker ] || rm -rf $keys
}
targets() { # for a Prometheus on this host
    install -d -m 0755 /etc/prometheus/protofleet
    replace $top/incoming/targets.json /etc/prometheus/protofleet/targets.json 0644
    rm -f $top/incoming/targets.json
}

check() { # release name
    verified folder $top/incoming $etc "$role $2"
    [ $role != broker ] || return 0
    as_device "$1" python -c "$probe" settings $top/incoming/settings ${other_role} >&2
}

switch() { # release device
    [ -e "$top/releases/$1/.complete" ] || fail "release $1 is not installed; deploy again"
    verify_unchanged "$1"
    [ ! -e $top/incoming/settings ] && [ ! -e $top/incoming/unit ] || verified folder $top/incoming $etc "$role $2"
    [ ! -e $top/incoming/settings ] || replace $top/incoming/settings $settings 0644
    [ ! -e $top/incoming/unit ] || replace $top/incoming/unit $unit 0644
    [ ! -e $top/incoming/mosquitto.conf ] || replace $top/incoming/mosquitto.conf $etc/mosquitto.conf 0644
    ln -sfn "releases/$1" $top/.current
    mv -T $top/.current $top/current
    rm -f $top/incoming/settings $top/incoming/unit $top/incoming/approval $top/incoming/mosquitto.conf $top/incoming/manifest*
    sync $top $etc
    systemctl daemon-reload
    systemctl enable -q $name
}

drain() { # seconds: let a device finish its work; other services lose no work when their process ends
    [ $role = device ] || return 0
    pid=$(show MainPID)
    [ "$pid" != 0 ] && [ "$(show ActiveState)" = active ] || return 0
    systemctl kill --kill-who=main -s USR1 $name
    until=$(($(date +%s) + $1))
    while [ "$(show MainPID)" = "$pid" ]; do
        echo draining || exit 1 # if the output fails, the operator's connection has closed
        [ "$(date +%s)" -lt "$until" ] || { echo "the work in progress was not finished after $1 s; its task is sent again" >&2; return 0; }
        sleep 0.2
    done
}

start() {
    systemctl enable -q $name
    systemctl reset-failed $name 2>/dev/null || :
    systemctl restart --no-block $name
}
stop() { drain "$1"; systemctl stop $name; systemctl reset-failed $name 2>/dev/null || :; }

state() {
    for key in ActiveState SubState NRestarts; do say $key "$(show $key)"; done
    if [ -e $top/current/image ]; then # the process ids inside a container differ from those of the host
        say agent "$(read_as_user 65536 $shown/status.json | sed -n 's/^ "pid": \([0-9]\{1,10\}\),$/\1/p' | head -n 1)"
    else
        say agent "$(show MainPID)"
    fi
    say status "$(read_as_user 65536 $shown/status.json)"
    [ $role = device ] || [ "$(show MainPID)" = 0 ] || say answers "$(answers)"
}

journal() { journalctl -q -u $name -t protofleet -n 12 -o cat --no-pager 2>/dev/null; }

record() { # JSON: record the release in use as known good, so that a rollback returns to this release
    release=$(basename "$(readlink $top/current)")
    if [ "$1" != "$(cat $top/kept/good/record 2>/dev/null)" ]; then
        rm -rf $top/kept/new
        install -d $top/kept/new
        cp $settings $top/kept/new/settings
        cp $unit $top/kept/new/unit
        printf '%s\n' "$1" >$top/kept/new/record
        sync $top/kept/new/record
        if [ -e $top/kept/good ]; then rm -rf $top/kept/previous; mv $top/kept/good $top/kept/previous; fi
        mv $top/kept/new $top/kept/good
    fi
    for old in "$top"/releases/*; do # remove all releases except those that a rollback may need
        number=$(basename "$old")
        if [ "$number" = "$release" ] || grep -qs "\"$number\"" $top/kept/*/record; then continue; fi
        [ ! -e "$old/image" ] || docker rmi "protofleet-release:$number" >/dev/null 2>&1 || :
        rm -rf "$old" "$top/wheels/$number"
    done
}

block() { # release-settings, and "by hand" if an operator has rolled back a release that did not fail
    install -d $top/blocked
    printf '%s' "${2:-}" >"$top/blocked/$1"
    sync $top/blocked
}
allow() { rm -f "$top/blocked/$1"; }

tune() { replace $top/incoming/tuning $etc/tuning 0644; rm -f $top/incoming/tuning; }
restore_unit() { cp "$top/kept/$1/unit" $top/incoming/unit; } # good or previous: use its unit; the operator's machine signs and uploads its settings again

erase_keys() {
    systemctl disable -q --now $name 2>/dev/null || :
    systemctl reset-failed $name 2>/dev/null || :
    # shellcheck disable=SC2016
    as_user $user sh -c 'for key in "$1"/current/*.key "$1"/set*/*.key "$1"/pending/*.key; do
        [ ! -e "$key" ] || shred -u "$key" 2>/dev/null || rm -f "$key"
    done' sh $keys || :
    rm -rf $keys # rm does not follow links: it removes the links themselves
}

case $1 in # check the name of a release, because it may come from the device, which reports its kept releases
    build | load | request | enrol | check | switch | block | allow | go_on)
        case ${2:-} in *[!0-9a-f-]* | '') fail "'${2:-}' is not the name of a release, which is hexadecimal" ;; esac ;;
esac
# Only one step of a deployment runs at a time. If the connection of an earlier step was lost, wait until it has ended.
case $1 in
    state | journal) ;;
    *) exec 9>/run/protofleet-deploy.lock
       flock -w 120 9 || fail "another deployment is running on this device" ;;
esac
"$@"
