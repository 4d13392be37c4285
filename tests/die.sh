# To be sourced by the scripts of this folder.

# Ends the script with a message that begins with its name.
die() { echo "$(basename "$0"): $*" >&2; exit 1; }
