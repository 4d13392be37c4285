#!/bin/bash
# beside.sh [PART...]: programs that nobody here wrote, alone beside hooked. Prints a row for each program and each way to profile it:
# whether its output and its exit status are those that it has alone, and what gprofinject said at the end. The parts are
# runtimes, nested, servers, attached and suites; all by default. Exits with 1 if a row differs. Tests of the suites with timeouts of
# microseconds (bash's read7.sub) may differ.
#
# As root on Debian it installs the programs that are missing. A program that is not there is named as SKIPPED.
# suites runs the test suites of zlib, jq, bash and coreutils, from Debian's source packages, whole under gprofinject: each test has the
# result that it has alone. It takes 20 minutes.
#
#   GPROFINJECT=PATH   the command
#   KEEP=FOLDER        where sources are kept between runs
#   SUITES=NAMES       the suites that are run
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/die.sh"
command=$(realpath "${GPROFINJECT:-$here/../target/release/gprofinject}")
[ -x "$command" ] || die "no gprofinject command: build it, or set GPROFINJECT"
parts=${*:-runtimes nested servers attached suites}
wants() { case " $parts " in *" $1 "*) ;; *) return 1 ;; esac; }

packages=()
wants runtimes && packages+=(mono-runtime mono-mcs default-jdk-headless erlang-base php-cli ruby)
wants nested && packages+=(valgrind strace gdb)
if wants servers || wants attached; then
    packages+=(php-fpm libfcgi-bin openssh-server openssh-client postfix etcd-server etcd-client prometheus curl)
fi
wants suites && packages+=(make gcc dpkg-dev xz-utils autoconf automake libtool bison)
missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed' || missing+=("$package")
done
if [ ${#missing[@]} != 0 ] && [ "$(id -u)" = 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -q update && apt-get -q install -y --no-install-recommends "${missing[@]}"; } </dev/null >/dev/null 2>&1 ||
        echo "beside.sh: not all of these could be installed: ${missing[*]}" >&2
fi

work=$(mktemp -d)
started=()
clean_up() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null; done
    wait
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
cd "$work" || exit 1
worst=0

has() { # TOOL...: whether all of them are there
    local tool
    for tool; do
        command -v "$tool" >/dev/null || { echo "SKIPPED: no $tool"; return 1; }
    done
}
row() { # NAME WAY SAME DETAIL
    echo "| $1 | $2 | $3 | $4 |"
    [ "$3" = yes ] || worst=1
}
said() { # FILE: the last sentence of gprofinject in it
    grep -a '^gprofinject: ' "$1" | tail -n 1 | cut -c14-150
}
# Runs a command alone and in each way, and compares output, what is said on standard error, and status.
all=("" "--hooks entry" "--times" "--libs all" "--trace trace.file")
ways=("${all[@]}")
beside() { # NAME COMMAND...
    local name=$1 alone hooked way same detail
    shift
    alone=0
    timeout 300 "$@" >out.alone 2>err.alone </dev/null || alone=$?
    for way in "${ways[@]}"; do
        hooked=0
        # shellcheck disable=SC2086
        timeout 600 "$command" $way -o profile.out -- "$@" >out.hooked 2>err.all </dev/null || hooked=$?
        grep -av '^gprofinject: ' err.all >err.hooked
        # gdb prints the number of the process.
        sed -i -E 's/process [0-9]+/process N/' out.alone err.alone out.hooked err.hooked
        same=yes
        detail=$(said err.all)
        if [ "$alone" != "$hooked" ]; then same=no detail="status $hooked, alone $alone; $detail"; fi
        if ! cmp -s out.alone out.hooked; then same=no detail="output differs; $detail"; fi
        if ! cmp -s err.alone err.hooked; then same=no detail="standard error differs; $detail"; fi
        row "$name" "${way:-default}" "$same" "$detail"
    done
}

cat >small.c <<'C'
#include <stdio.h>
__attribute__((noinline)) static long fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
int main(int argc, char **argv) { printf("%ld\n", fib(18 + argc)); return 3; }
C
gcc -O1 -o small small.c || die "needs gcc"

echo '| program | way | as alone | gprofinject says |'
echo '|---|---|---|---|'

if wants runtimes; then
    if has mono mcs; then
        cat >hello.cs <<'C'
using System; using System.Collections.Generic; using System.Linq; using System.Threading;
class Hello {
    static int Fib(int n) { return n < 2 ? n : Fib(n - 1) + Fib(n - 2); }
    static int Main() {
        var words = new Dictionary<string, int>();
        for (int i = 0; i < 1000; i++) words["w" + i % 7] = i;
        try { throw new InvalidOperationException("thrown"); } catch (Exception e) { Console.WriteLine(e.Message); }
        var thread = new Thread(() => Console.WriteLine("thread " + Fib(15)));
        thread.Start(); thread.Join(); GC.Collect();
        Console.WriteLine(string.Join(",", words.OrderBy(w => w.Key).Select(w => w.Value)));
        return 5;
    }
}
C
        if mcs -out:hello.exe hello.cs >/dev/null 2>&1; then
            beside mono mono hello.exe
        fi
        ways=("" "--hooks entry")
        beside mcs mcs -out:again.exe hello.cs
        ways=("${all[@]}")
    fi
    if has java javac; then
        cat >Hello.java <<'J'
import java.util.*;
public class Hello {
    static int deep(int n) { return n + deep(n + 1); }
    public static void main(String[] a) throws Exception {
        Map<String, Integer> words = new TreeMap<>();
        for (int i = 0; i < 1000; i++) words.put("w" + i % 7, i);
        try { deep(0); } catch (StackOverflowError e) { System.out.println("overflow"); }
        Thread t = new Thread(() -> System.out.println("thread")); t.start(); t.join(); System.gc();
        System.out.println(words); System.exit(5);
    }
}
J
        javac Hello.java >/dev/null 2>&1 && beside java java -XX:-UsePerfData Hello
    fi
    has erl && beside erl erl -noshell -eval \
        'Self = self(), [spawn(fun() -> Self ! lists:sum(lists:seq(1, N)) end) || N <- lists:seq(1, 200)], io:format("~p~n", [lists:sum([receive X -> X end || _ <- lists:seq(1, 200)])]), halt(3).'
    has php && beside php php -r '$a = []; for ($i = 0; $i < 100000; $i++) $a[] = crc32("x$i"); sort($a); echo md5(serialize($a)), "\n"; exit(4);'
    has ruby && beside ruby ruby -e 'a = (1..20000).map { |i| "x#{i}".hash & 0; i * i % 101 }; f = Fiber.new { Fiber.yield 1; 2 }; puts a.sort.sum, f.resume, f.resume; begin; raise "r"; rescue => e; puts e.message; end; Thread.new { puts :t }.join; exit 6'
    if has ruby; then
        beside callcc ruby -W0 -rcontinuation -e 'n = 0; r = []; k = callcc { |c| c }; n += 1; r << n; def d(i, &b) = i == 0 ? b.call : d(i - 1, &b); x = d(20) { callcc { |c| $c = c; 0 } }; r << x; $c.call(x + 1) if x < 5; k.call(k) if n < 3; p r'
    fi
fi

if wants nested; then
    ways=("" "--hooks entry" "--times")
    has valgrind && beside valgrind valgrind -q --error-exitcode=9 ./small
    has strace && beside strace strace -f -o strace.log ./small
    has gdb && beside gdb gdb -q -batch -ex run ./small
    nested() { # NAME COMMAND...: gprofinject as the program of another one
        local name=$1 alone=0 hooked=0
        shift
        ./small >out.alone || alone=$?
        timeout 300 "$@" -q -o inner.out ./small >out.hooked 2>err.all </dev/null || hooked=$?
        if [ $alone = $hooked ] && cmp -s out.alone out.hooked; then row "$name" "" yes "$(said err.all)"; else row "$name" "" no "status $hooked; $(tail -n 1 err.all | cut -c1-120)"; fi
    }
    nested "gprofinject gprofinject" "$command" "$command"
    nested "gprofinject --times gprofinject" "$command" --times "$command"
    has valgrind && nested "valgrind gprofinject" valgrind -q "$command"
fi

# The servers: each has start_NAME, which runs it in the foreground by "$@" in front of it, ready_NAME and ask_NAME, which prints
# what it answers.
port=$((20000 + $$ % 20000))
# The number of requests after which a worker of php-fpm ends; 0: it stays.
requests=20
start_php_fpm() {
    mkdir -p php
    cat >php/fpm.conf <<C
[global]
error_log = $work/php/log
daemonize = no
[www]
listen = $work/php/socket
listen.mode = 0666
user = www-data
group = www-data
pm = dynamic
pm.max_children = 4
pm.start_servers = 2
pm.min_spare_servers = 1
pm.max_spare_servers = 3
pm.max_requests = $requests
C
    chmod 755 "$work" php
    echo '<?php $s = 0; for ($i = 0; $i < 2000; $i++) $s += crc32("a$i"); echo "sum $s ", $_GET["n"] ?? "", "\n";' >php/a.php
    exec "$@" "$(compgen -c php-fpm | head -n 1)" -y php/fpm.conf
}
ask_php_fpm() {
    local i
    for i in $(seq 60); do
        SCRIPT_FILENAME=$work/php/a.php REQUEST_METHOD=GET QUERY_STRING=n=$i timeout 20 cgi-fcgi -bind -connect "$work/php/socket" | tail -n 1
    done
}
start_sshd() {
    mkdir -p ssh /run/sshd
    [ -e ssh/key ] || { ssh-keygen -q -t ed25519 -N '' -f ssh/key && ssh-keygen -q -t ed25519 -N '' -f ssh/host && cp ssh/key.pub ssh/authorized; }
    chmod 700 ssh
    exec "$@" /usr/sbin/sshd -D -e -f /dev/null -p "$port" -h "$work/ssh/host" -o ListenAddress=127.0.0.1 -o AuthorizedKeysFile="$work/ssh/authorized" -o StrictModes=no -o PidFile=none -o UsePAM=no
}
ask_sshd() {
    local i
    for i in $(seq 8); do
        timeout 30 ssh -q -i ssh/key -p "$port" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes 127.0.0.1 "echo run $i; exit $i" 2>&1
        echo "status $?"
    done
}
start_etcd() {
    rm -rf etcd.data
    exec "$@" etcd --data-dir etcd.data --log-level error --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" --listen-peer-urls "http://127.0.0.1:$((port + 1))"
}
ask_etcd() {
    local i
    for i in $(seq 15); do
        ETCDCTL_API=3 timeout 20 etcdctl --endpoints "127.0.0.1:$port" put "k$i" "v$i" 2>&1
        ETCDCTL_API=3 timeout 20 etcdctl --endpoints "127.0.0.1:$port" get "k$i" 2>&1
    done
}
start_prometheus() {
    echo 'global: {scrape_interval: 1s}' >prometheus.yml
    rm -rf prometheus.data
    exec "$@" prometheus --config.file=prometheus.yml --storage.tsdb.path=prometheus.data --web.listen-address="127.0.0.1:$port" --log.level=error
}
ask_prometheus() {
    local i
    for i in $(seq 40); do
        timeout 20 curl -sS "http://127.0.0.1:$port/api/v1/query?query=vector($i)%2b1&time=0" 2>&1
        echo
    done
}
start_postfix() {
    rm -rf mail && mkdir -p mail/etc mail/queue mail/data
    cp -r /etc/postfix/* mail/etc/ 2>/dev/null
    cp /usr/share/postfix/master.cf.dist mail/etc/master.cf
    sed -i '/^smtp /s/^smtp /'"127.0.0.1:$port"' /; s/^\([a-z].* \)y\( *[-0-9]* *[-0-9]* *[a-z]*\)/\1n\2/' mail/etc/master.cf
    cat >mail/etc/main.cf <<C
compatibility_level = 3.6
queue_directory = $work/mail/queue
data_directory = $work/mail/data
mydestination = here.test
myhostname = here.test
mynetworks = 127.0.0.0/8
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
maillog_file = /dev/stdout
maillog_file_prefixes = /dev/stdout, $work
local_recipient_maps =
local_transport = discard
alias_maps =
C
    chown postfix mail/data
    exec "$@" postfix -c "$work/mail/etc" start-fg
}
ask_postfix() {
    local i
    for i in $(seq 10); do
        timeout 20 curl -sS --url "smtp://127.0.0.1:$port/here.test" --mail-from a@here.test --mail-rcpt "u$i@here.test" --upload-file "$work/small.c" 2>&1
        echo "status $?"
    done
}
needs() {
    case $1 in
        php_fpm) [ -n "$(compgen -c php-fpm)" ] && has cgi-fcgi ;;
        sshd) [ -x /usr/sbin/sshd ] && has ssh ssh-keygen ;;
        etcd) has etcd etcdctl ;;
        prometheus) has prometheus curl ;;
        postfix) [ "$(id -u)" = 0 ] && has postfix curl ;;
    esac
}
ready() { # NAME: waits until it answers
    local i
    for i in $(seq 300); do
        case $1 in
            php_fpm) [ -S php/socket ] && return 0 ;;
            # It listens before it can answer.
            prometheus) curl -fs -o /dev/null "http://127.0.0.1:$port/-/ready" && return 0 ;;
            *) (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return 0 ;;
        esac
        sleep 0.1
    done
    return 1
}
# Starts a server, asks it, and ends it by SIGTERM. Its answers are in the file answers.WAY, its status in `status`.
serve() { # NAME WAY COMMAND...
    local name=$1 way=$2 pid
    shift 2
    port=$((port + 3))
    [ "$way" = attach ] && requests=0 || requests=20
    # As a service manager starts it: the leader of a session, without a terminal.
    (start_"$name" setsid "$@") >log 2>&1 </dev/null &
    pid=$!
    started+=("$pid")
    ready "$name" || echo "$name did not start: $(tail -n 1 log)" >&2
    "ask_$name" >"answers.$way"
    [ "$way" != attach ] || attach "$pid" "$name"
    kill "$pid"
    status=0
    wait "$pid" || status=$?
    # What a server leaves behind, as postfix does, is in its session.
    pkill -s "$pid" && sleep 1
    started=()
}
# Attaches ten times to a server while it is asked. A worker may end meanwhile, which must be said.
attach() { # PID NAME
    local i asker worker failed=0 ended=0
    while :; do "ask_$2"; done >answers.busy 2>&1 &
    asker=$!
    for i in $(seq 10); do
        # A worker, if there are any: the youngest process that it has started.
        worker=$(pgrep -n -P "$1" || echo "$1")
        if timeout 60 "$command" --pid "$worker" --duration 0.3 -o attached.out >attach.log 2>&1; then
            :
        elif grep -q "process $worker has ended" attach.log; then
            ended=$((ended + 1))
        else
            failed=$((failed + 1))
            tail -n 1 attach.log >>failed.log
        fi
    done
    kill "$asker" && wait "$asker" 2>/dev/null
    attached="$failed of 10 attaches failed, $ended workers ended before; $(said attach.log)"
    attach_failed=$failed
}

for name in php_fpm sshd postfix etcd prometheus; do
    wants servers || wants attached || break
    needs "$name" || continue
    serve "$name" alone
    alone=$status
    if wants servers; then
        for way in "" "--hooks entry" "--times"; do
            # shellcheck disable=SC2086
            serve "$name" hooked "$command" $way -o profile.out --
            if [ "$status" != "$alone" ]; then
                row "$name" "${way:-default}" no "status $status, alone $alone; $(said log)"
            elif ! cmp -s answers.alone answers.hooked; then
                row "$name" "${way:-default}" no "answers differ; $(said log)"
            else
                row "$name" "${way:-default}" yes "$(said log)"
            fi
        done
    fi
    if wants attached; then
        serve "$name" attach
        if [ "$status" = "$alone" ] && cmp -s answers.alone answers.attach && [ "$attach_failed" = 0 ]; then
            row "$name" "--pid, 10 times" yes "$attached"
        else
            row "$name" "--pid, 10 times" no "status $status, alone $alone; $attached"
        fi
    fi
done

# The suites: what each prints of its tests' results, alone and hooked.
if wants suites; then
    sources=${KEEP:-$work/sources}
    mkdir -p "$sources"
    suites=${SUITES:-zlib jq bash coreutils}
    for package in $suites; do
        "$here/sources.sh" "$sources" "$package" || { echo "SKIPPED: no source of $package"; continue; }
    done
    unpacked() { find "$sources/src" -maxdepth 1 -type d -name "$1-*" | sort | tail -n 1; }
    suite() { # NAME FOLDER CONFIGURE TEST-COMMAND PATTERN: lines that match the pattern are results
        local name=$1 folder=$2 configure=$3 test=$4 pattern=$5 way
        case " $suites " in *" $name "*) ;; *) return 0 ;; esac
        [ -n "$folder" ] || return 0
        [ -e "$folder/.built" ] || (cd "$folder" && FORCE_UNSAFE_CONFIGURE=1 sh -c "$configure" && touch .built) >"$sources/$name.log" 2>&1 || {
            row "$name" "its test suite" no "does not build: $(tail -n 1 "$sources/$name.log" | cut -c1-100)"
            return
        }
        (cd "$folder" && timeout 1800 sh -c "$test") >suite.alone 2>&1 </dev/null
        (cd "$folder" && timeout 7200 "$command" -q -o "$work/suite.out" sh -c "$test") >suite.hooked 2>&1 </dev/null
        # Messages contain numbers of processes.
        grep -aE "$pattern" suite.alone | sed -E 's/\([0-9]+\)/(PID)/' | sort >results.alone
        grep -aE "$pattern" suite.hooked | sed -E 's/\([0-9]+\)/(PID)/' | sort >results.hooked
        if [ -s results.alone ] && cmp -s results.alone results.hooked; then
            row "$name" "its test suite" yes "$(wc -l <results.alone) results"
        else
            row "$name" "its test suite" no "$(diff results.alone results.hooked | grep -c '^[<>]') of $(wc -l <results.alone) results differ: $(diff results.alone results.hooked | grep '^[<>]' | head -n 2 | tr '\n' ' ' | cut -c1-160)"
        fi
    }
    suite zlib "$(unpacked zlib)" './configure && make' 'make test' 'OK|hello|FAIL'
    suite jq "$(unpacked jq)" '(autoreconf -fi; ./configure --disable-maintainer-mode --disable-docs --without-oniguruma --disable-valgrind) && make' 'make -k check' '^(PASS|FAIL|XFAIL|SKIP|ERROR):|^# (TOTAL|PASS|FAIL)'
    suite bash "$(unpacked bash)" './configure --without-bash-malloc && make' 'cd tests && THIS_SH=$PWD/../bash sh ./run-all' '^run-|FAIL|^[<>]'
    suite coreutils "$(unpacked coreutils)" './configure --disable-nls && make' 'make -k check -j2 RUN_VERY_EXPENSIVE_TESTS=no' '^(PASS|FAIL|XFAIL|SKIP|ERROR):'
fi
exit "$worst"
