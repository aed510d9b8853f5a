"""A worker that does what it is told: one JSON object in, one out, as `acache.compilers.WorkerProgram` says.

Run with ``python -I -S``; the first argument is a file that gets a line per order before it is done, the
second what to say in place of a greeting.
"""

import json
import os
import sys
import time

log, greeting = sys.argv[1:3]
if greeting == "die":
    sys.stderr.write("dead before a word\n")
    sys.exit(3)
if greeting == "hush":
    sys.stdin.readline()  # for ever: nothing is sent before a greeting
print(greeting, flush=True)
kept = []
for line in sys.stdin:
    order = json.loads(line)
    if order["do"] != "rush":
        print(flush=True)
    with open(log, "a") as file:
        file.write(f"{order['do']}\n")
    match order["do"]:
        case "echo":
            answer = {"pid": os.getpid(), "files": sorted(os.listdir(".")), **order}
            with open("left-behind", "w") as file:
                file.write("by the last compile")
            os.makedirs("folder/within", exist_ok=True)
            if order.get("then") == "die":
                print(json.dumps(answer), flush=True)
                sys.exit(1)
            if order.get("then") == "chatter":
                print(json.dumps(answer) + "\nand another thing", flush=True)
                continue
        case "environment":
            answer = {"environment": dict(os.environ), "folder": os.getcwd(), "argv": sys.argv}
        case "sleep" if os.path.exists(order["began"]):
            answer = {}  # the second time it is quick
        case "sleep":
            with open(order["began"], "w") as file:
                file.write(str(os.getpid()))
            time.sleep(order["seconds"])
            answer = {}
        case "burn":
            until = time.process_time() + order["seconds"]
            while time.process_time() < until:
                pass
            answer = {}
        case "grow":
            kept.append(b"x" * order["bytes"])
            answer = {"pid": os.getpid()}
        case "exit":
            sys.stderr.write("so much for that\n")
            sys.exit(7)
        case "signal":
            os.kill(os.getpid(), order["number"])
        case "rush":
            answer = {}
        case "say":
            print(order["text"], flush=True)
            continue
    print(json.dumps(answer), flush=True)
