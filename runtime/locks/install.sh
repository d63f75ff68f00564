#!/bin/sh
# Install packages and print each one of over a megabyte as its download begins: some take minutes.
# Arguments: a line that says what comes, and the command.
echo "$1"
shift
# pip names what it fetches where it is not quiet. The exit status is pip's, not that of the loop that reads it.
exec 4>&1
code=$( {
    { "$@" 3>&-; echo $? >&3; } | while IFS= read -r line; do
        case $line in *Downloading\ *[MG]B\) | *"Using cached "*[MG]B\)) ;; *) continue ;; esac
        size=${line##*\(} file=${line% (*} file=${file##*[/ ]}
        printf '  %s  %s\n' "${file%%-cp*}" "${size%\)}" >&4
    done
} 3>&1)
exit "$code"
