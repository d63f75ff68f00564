# Print the state of a host, each value as key=value and a NUL byte. The script only reads. It runs in any POSIX shell,
# after the variables of roles.py.
# The argument is deep or quick. With deep, the script also tries torch and the broker, which takes seconds.
# Files of the device's user are read as that user: if root read them, a link could make root read any file.
cd /
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin:/usr/local/bin:/usr/local/sbin"
has() { command -v "$1" >/dev/null 2>&1; }
with_timeout() { if has timeout; then timeout 10 "$@"; else "$@"; fi 2>/dev/null; }
first_existing() { for path; do [ -e "$path" ] && { echo "$path"; return; }; done; }
sha256() { [ -r "$1" ] && sha256sum "$1" | cut -d' ' -f1; }
as_user() { # command ...: run as the service's user, in the groups that may use a GPU
  if [ "$(id -u)" != 0 ] || ! id "$user" >/dev/null 2>&1; then "$@" </dev/null 2>/dev/null; return; fi
  gpu=$(cut -d: -f1,3 /etc/group | sed -n 's/^\(video\|render\)://p' | tr '\n' ',')
  if [ -n "$gpu" ]; then groups=--groups=${gpu%,}; else groups=--clear-groups; fi
  env HOME="$home" setpriv --reuid="$user" --regid="$user" "$groups" --no-new-privs -- "$@" </dev/null 2>/dev/null
}
known_keys() { tr -d '\000' | grep -aE '^(torch|torch_problem|torch_build|torch_bytes|cuda|cert_until|broker)=' | cut -c1-500 | tr '\n' '\000'; } # keep only known keys of the output of a program that the user may have changed
read_as_user() { as_user timeout 5 head -c "${2:-65536}" "$1" 2>/dev/null; }
sha256_as_user() { digest=$(read_as_user "$1" | sha256sum | cut -d' ' -f1); [ "$digest" != "$of_nothing" ] && echo "$digest"; }
of_nothing=$(sha256sum </dev/null | cut -d' ' -f1)

say arch "$(uname -m)"
say kernel "$(uname -r)"
say uid "$(id -u)"
say now "$(date +%s)"
[ -r /etc/os-release ] && say os "$(. /etc/os-release; echo "$ID $VERSION_ID")"
[ -r /proc/device-tree/model ] && say model "$(tr -d '\0' </proc/device-tree/model)"
[ -r /etc/nv_tegra_release ] && say l4t "$(sed -n 's/^# R\([0-9]*\) (release), REVISION: \([0-9.]*\),.*/\1.\2/p' /etc/nv_tegra_release)"
[ -n "$(first_existing /dev/nvidia0 /dev/nvhost-gpu /dev/nvmap)" ] && say nvidia yes
for tool in rsync python3 docker sha256sum runuser mosquitto ssh-keygen; do has $tool && say tool $tool; done
has ssh-keygen && ssh-keygen -Y find-principals 2>&1 </dev/null | grep -q find-principals && say verifies yes # from OpenSSH 8.2 on
has "$python" && say python "$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)"
has "$python" && "$python" -c 'import venv, ensurepip' 2>/dev/null && say venv yes
has systemctl && {
  say systemd "$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')"
  say systemd_state "$(systemctl is-system-running 2>/dev/null)"
}
[ $role = broker ] && has mosquitto && say mosquitto "$(mosquitto -h 2>/dev/null | sed -n '1s/^mosquitto version //p')"
[ $role = coordinator ] && [ -d /etc/prometheus ] && say prometheus yes
has timedatectl && say clock_synced "$(with_timeout timedatectl show -p NTPSynchronized --value)"
say groups "$(cut -d: -f1 /etc/group | grep -xE 'video|render' | tr '\n' ' ')"

say disk_free "$(df -Pk "$(first_existing "$top" /opt /)" | awk 'NR==2 {printf "%.0f", $4 * 1024}')"
say state_free "$(df -Pk "$(first_existing "$home" /var/lib /)" | awk 'NR==2 {printf "%.0f", $4 * 1024}')"
say storage "$(df -P "$(first_existing "$home" /var/lib /)" | awk 'NR==2 {print $1}')"
awk '/^MemTotal:/ {printf "ram=%.0f\n", $2 * 1024} /^MemAvailable:/ {printf "ram_free=%.0f\n", $2 * 1024}
     /^SwapTotal:/ {printf "swap=%.0f\n", $2 * 1024}' /proc/meminfo | tr '\n' '\000'
for zone in /sys/class/thermal/thermal_zone*; do
  heat=$(cat "$zone/temp" 2>/dev/null) && say temperature "$heat $(cat "$zone/type")"
done
has nvpmodel && say nvpmodel "$(with_timeout nvpmodel -q | sed -n 's/^NV Power Mode: //p')"

has docker && {
  say docker "$(with_timeout docker version --format '{{.Server.Version}}')"
  say docker_runtimes "$(with_timeout docker info --format '{{range $name, $run := .Runtimes}}{{$name}} {{end}}')"
}
has iptables && say iptables "$(with_timeout iptables --version)"
[ "$(id -u)" = 0 ] && has iptables && { with_timeout iptables -t nat -n -L >/dev/null && say iptables_works yes || say iptables_works no; }

[ -L $top/current ] && say release "$(basename "$(readlink $top/current)")"
for made in $top/releases/*/.complete; do [ -e "$made" ] && say complete "$(basename "$(dirname "$made")")"; done
for blocked in $top/blocked/*; do
  [ -e "$blocked" ] && say blocked "$(basename "$blocked")"
  grep -qsx 'by hand' "$blocked" && say rolled_back "$(basename "$blocked")"
done
for kept in good previous; do
  [ -r $top/kept/$kept/record ] && say $kept "$(cat $top/kept/$kept/record)"
  [ -r $top/kept/$kept/settings ] && say ${kept}_settings "$(cat $top/kept/$kept/settings)"
done
[ -r "$settings" ] && say settings "$(cat "$settings")"
say pinned "$(sha256 $etc/roots)"
say signers "$(sha256 $etc/allowed_signers)"
[ -r $etc/roots ] && say held_roots "$(head -c 65536 $etc/roots)"
say unit "$(sha256 "$unit")"
id "$user" >/dev/null 2>&1 && say user "$user"
say tls "$(sha256_as_user $keys/current/tls.crt)"
say roots "$(sha256_as_user $keys/current/roots)"
say coordinator "$(sha256_as_user $keys/current/coordinator.record)"
# These lists show whether a root was restored from an old copy. A list of 8,192 serial numbers takes 88 kB; in the form
# of X.509 it takes more.
[ $role = broker ] || say held_revoked "$(read_as_user $keys/current/revoked 131072)"
case $role in
  broker)
    [ -r $keys/current/crl.pem ] && say held_crl "$(base64 <$keys/current/crl.pem)"
    say lists "$(cat $keys/current/crl.pem $keys/current/acl 2>/dev/null | sha256sum | cut -d' ' -f1)" ;;
  coordinator)
    say lists "$( (cd $etc/records 2>/dev/null && sha256sum -- *.record 2>/dev/null) | sha256sum | cut -d' ' -f1)"
    say revoked "$(sha256_as_user $keys/current/revoked)"
    say targets "$(sha256 /etc/prometheus/protofleet/targets.json)" ;;
esac
# For each link to a version that the device serves: the name of the version, and the round on its card.
[ -n "$models" ] && for link in current champion pinned; do
  version=$(as_user timeout 5 readlink "$models/$link") || continue
  say served "$link $version $(as_user timeout 5 sed -n 's/^ "round": \([0-9]*\),\{0,1\}$/\1/p' "$models/$version/card.json" 2>/dev/null | head -c 20)"
done
status=$(read_as_user $shown/status.json)
if has systemctl && [ -e "$unit" ]; then
  for key in ActiveState SubState NRestarts UnitFileState; do
    say "$key" "$(systemctl show -p $key --value "$name")"
  done
  pid=$(systemctl show -p MainPID --value "$name")
  say agent "$pid"
  [ "$pid" != 0 ] && [ -e $top/current/image ] && # the process ids inside a container differ from those of the host
    say agent "$(printf '%s\n' "$status" | sed -n 's/^ "pid": \([0-9]\{1,10\}\),$/\1/p' | head -n 1)"
  [ "$pid" != 0 ] && {
    say running "$(tr '\0' '\n' <"/proc/$pid/cmdline" | sed -n "1s|^$top/releases/\\([0-9a-f]*\\)/.*|\\1|p; s|^protofleet.release=||p")"
    [ $role = broker ] && say running 0
    say running_unit "$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^PROTOFLEET_UNIT=//p')"
  }
fi
[ -n "$status" ] && say status "$status"
[ $role != device ] && [ "${pid:-0}" != 0 ] && say answers "$(answers)"

# In older releases the module has another name. No module is imported from the working directory.
probe='import sys; sys.path[:] = [p for p in sys.path if p]; import runpy
from importlib.util import find_spec
name = "protofleet.deploy.fleet.device.probe" if find_spec("protofleet") else "deploy.fleet.probe"
runpy.run_module(name, run_name="__main__", alter_sys=True)'
if [ "$1" = deep ]; then # the next arguments: an interpreter that has our program, the hosts and the ports of the broker's nodes
  has "$python" && [ -n "${3:-}" ] && {
    with_timeout "$python" -c '
import socket, sys
def answers(host, port):
    try: socket.create_connection((host, int(port)), 5).close()
    except OSError: return False
    return True
sys.exit(not any(map(answers, *[words.split(",") for words in sys.argv[1:]])))' "$3" "$4" \
      && say broker_tcp yes || say broker_tcp no
  }
  connected=$(printf '%s' "$status" | grep -q '"connected": true' && echo connected)
  [ $role = device ] || [ "${pid:-0}" = 0 ] || connected=connected
  for own in "${2:-}" $top/current/bin/python; do
    as_user test -x "$own" && { as_user timeout 90 "$own" -c "$probe" tell $connected $([ $role = device ] || echo $role) | known_keys; break; }
  done
  has "$python" && [ ! -x "${2:-}" ] && [ ! -x $top/current/bin/python ] && as_user timeout 90 "$python" -c '
import torch
print("torch=" + torch.__version__)
print("cuda=" + ("yes" if torch.cuda.is_available() else "no"))' | known_keys
fi
say end yes
