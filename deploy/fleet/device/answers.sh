# Print a value as facts.sh and remote.sh do: it ends with a NUL byte, which no value can contain. fields.py reads it.
say() { printf '%s=%s\000' "$1" "$2"; }
# Check the health of a service that writes no status file: connect to the service like a client. The check runs as the
# user of the service, because this user can read the service's files.
ask() { # program ...
    env HOME=/nonexistent setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs -- timeout 10 "$@" 2>&1 </dev/null 9>&- | tail -n 1 | cut -c1-500
}
answers() { # prints ok, or the problem
    case $role in
        coordinator) ask "$python" -I -c '
import json, sys, urllib.error, urllib.request
try:
    found = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(sys.argv[1], timeout=5)
except urllib.error.HTTPError as error:
    found = error
except OSError as error:
    sys.exit("%s does not answer: %s" % (sys.argv[1], error))
wrong = ["%s: %s" % one for one in json.load(found).items() if one[1]]
print("; ".join(wrong) or "ok")' "$endpoint" ;;
        broker) ask "$python" -I -c '
import socket, ssl, sys
port, folder = int(sys.argv[1]), sys.argv[2]
try:
    context = ssl.create_default_context(cafile=folder + "/ca.crt")
    context.check_hostname = False
    with socket.create_connection(("127.0.0.1", port), 5) as plain, context.wrap_socket(plain) as secured:
        served = secured.getpeercert(True)
    own = ssl.PEM_cert_to_DER_cert(open(folder + "/tls.crt").read())
except (OSError, ValueError) as error:
    sys.exit("port %d does not answer with TLS: %s" % (port, error))
print("ok" if served == own else "port %d shows another certificate than the one that was installed" % port)' "$endpoint" "$keys/current" ;;
    esac
}
