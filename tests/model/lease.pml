/* The lease protocol of one missing key, for an exhaustive search with spin: docs/model.md.
 *
 * One step is one file operation; between two steps anybody else may run. `succ[n]` is the slot behind the
 * holder with nonce n, `root` the root slot, 0 an empty one. Nonces that nothing refers to any more are drawn
 * again, which is the same as drawing fresh ones and keeps the search finite.
 *
 * -DFAULTS=k   faults that a run may have; which ones are allowed:
 *   -DCRASH    a process dies at any step while it has a slot
 *   -DSUSPEND  a process that has a slot stops for longer than its ttl, and goes on later
 *   -DSTALE    one read says "not there" of what is there
 *   -DSTALL    a compile makes no progress for hedge_after; it ends later, or never
 *   -DQUIT     a compile is abandoned, or fails for a reason that says nothing about the input
 *   -DLOST     a link is made and reported as refused
 *   -DFULL     a seal cannot be written, so that nothing is deleted
 * -DFAIL       every compile fails with a diagnostic about the input
 * -DTIDY       also claim that nobody unlinks what it did not see, and that nothing is left behind at the end
 * -DLIVE       also claim that every process comes to an end
 *
 * Broken on purpose, each of which must be found: NO_SEAL, NO_WALK, ROOT_FIRST_RIVAL, NO_LAST_LOOK, ONE_NONCE,
 * HEDGED_HEDGE, NO_REREAD, ERR_OF_SUPERSEDED, ART_ONLY_LAST_LOOK, EARLY_RELEASE.
 */

#ifndef N
#define N 3
#endif
#ifndef FAULTS
#define FAULTS 0
#endif
#ifndef M
#define M 12		/* nonces 1..M-1; running out of them is an error, so the bound hides nothing */
#endif
#define DEPTH 8		/* slots of a chain; a longer one is an error as well */
#define NOBODY 255

#ifdef CRASH
#define MAY_CRASH (faults < FAULTS)
#else
#define MAY_CRASH false
#endif
#ifdef SUSPEND
#define MAY_SUSPEND (faults < FAULTS)
#else
#define MAY_SUSPEND false
#endif
#ifdef STALE
#define MAY_BE_STALE (faults < FAULTS)
#else
#define MAY_BE_STALE false
#endif
#ifdef STALL
#define MAY_STALL (faults < FAULTS)
#else
#define MAY_STALL false
#endif
#ifdef QUIT
#define MAY_QUIT (faults < FAULTS)
#else
#define MAY_QUIT false
#endif
#ifdef FULL
#define MAY_BE_FULL (faults < FAULTS)
#else
#define MAY_BE_FULL false
#endif
#ifdef LOST
#define MAY_LOSE (faults < FAULTS)
#else
#define MAY_LOSE false
#endif

/* --- what lies on disk --- */
bool art;		/* K.art */
byte err;		/* K.err: the nonce of the holder who wrote it; NOBODY where it was deterministic */
byte root;		/* K.lease */
byte succ[M];		/* K.lease.<nonce> */
byte owner[M];		/* who wrote the record with that nonce */
bool shut[M];		/* flag `closed`: a seal */
bool beside[M];		/* flag `hedge` */
bool tainted[M];	/* ghost: its holder is a rival, or was superseded when it wrote K.err */

/* --- what processes know --- */
typedef Chain { byte at[DEPTH] };
Chain seen[N];		/* a walk so far */
byte depth[N];
byte mine[N];		/* the nonce of the lease that I hold */
byte sealed[N];		/* the nonce of my seal */
byte behind[N];		/* whose successor slot I take, or have */
bool down[N], asleep[N], compiling[N], ended[N];
#ifdef QUIT
byte watched[N];	/* holders that I saw, a bit for each nonce */
#endif

/* --- ghosts, for the claims --- */
byte faults, compiles, finished;
bool stalled;		/* compiles look as if they stood still */
bool dirty;		/* a fault happened that may leave a slot behind: a crash, or a sleep beyond the ttl */

/* Nobody beats for that record any more: silence of a ttl will open its successor slot. */
#define SILENT(n)	(down[owner[n]] || asleep[owner[n]] || (mine[owner[n]] != n && sealed[owner[n]] != n))
#ifdef HEDGED_HEDGE
#define HEDGEABLE(n)	(stalled && !shut[n] && compiling[owner[n]])
#else
#define HEDGEABLE(n)	(stalled && !shut[n] && !beside[n] && compiling[owner[n]])
#endif
#define S(n)		succ[n]
#define LEADS(n)	(root == n || S(root) == n || S(S(root)) == n || S(S(S(root))) == n || \
			 S(S(S(S(root)))) == n || S(S(S(S(S(root))))) == n)
#define IS_TAIL(n)	(succ[n] == 0 && LEADS(n))

/* Take a walk's memory back, so that equal states are equal. */
inline forget() { d_step {
	k = 0;
	do
	:: k < DEPTH -> seen[id].at[k] = 0; k++
	:: else -> break
	od;
	depth[id] = 0; k = 0
} }

/* n = a nonce that nothing on disk and in anybody's mind refers to. */
inline draw() { d_step {
	n = 1;
	do
	:: n < M ->
		used = (root == n || succ[n] != 0 || err == n);
		k = 1;
		do
		:: k < M && !used -> used = (succ[k] == n); k++
		:: else -> break
		od;
		k = 0;
		do
		:: k < N && !used ->
			used = (mine[k] == n || sealed[k] == n || behind[k] == n);
			j = 0;
			do
			:: j < DEPTH && !used -> used = (seen[k].at[j] == n); j++
			:: else -> break
			od;
			k++
		:: else -> break
		od;
		if
		:: used -> n++
		:: else -> break
		fi
	:: else -> break
	od;
	assert(n < M);
	owner[n] = id; shut[n] = false; beside[n] = false; tainted[n] = false;
#ifdef QUIT
	k = 0;
	do
	:: k < N -> watched[k] = watched[k] & ~(1 << (n - 1)); k++
	:: else -> break
	od;
#endif
	k = 0; j = 0; used = false
} }

/* x = the record in the slot behind f. */
#define READ(f)		((f) == 0 -> root : succ[f])
inline put(f, r) {
	if
	:: (f) == 0 -> root = r
	:: else -> succ[f] = r
	fi
}

/* Unlink the slot behind f, where I saw e. What I did not see there is a stranger's. */
inline unlink(f, e) {
#ifdef TIDY
	assert(READ(f) == 0 || READ(f) == e);
#endif
	put(f, 0)
}

/* At any step of one who has a slot. */
#define TROUBLE(here) \
	:: atomic { MAY_CRASH && mine[id] != 0 -> faults++; dirty = true; goto CRASHED } \
	:: atomic { MAY_SUSPEND && mine[id] != 0 -> faults++; dirty = true; asleep[id] = true }; \
	   atomic { asleep[id] = false; goto here }

proctype Process(byte id) {
	byte n, k, j, x;
	bool used, withdraw, left, ok;

LOOK:	/* K.art; on a miss K.err, then K.art again. */
#if defined(FAIL) || defined(QUIT)
	if
	:: atomic { art -> goto DONE }
	:: atomic { true ->
		x = err;
		if
#ifdef QUIT
		:: x != 0 && x != NOBODY && (watched[id] & (1 << (x - 1))) == 0 -> x = 0
#endif
		:: else
		fi }
	fi;
#endif
	if
	:: atomic { art -> x = 0; goto DONE }
	:: atomic { !art && x == 0 }
#if defined(FAIL) || defined(QUIT)
	:: atomic { !art && x != 0 -> goto SHARED }
#endif
	:: atomic { art && MAY_BE_STALE -> faults++; x = 0 }
	fi;

WALK:	/* Read the root, then its successor, and so on. */
	if
	:: atomic {
		x = (depth[id] == 0 -> root : succ[seen[id].at[depth[id] - 1]]);
		if
		:: x != 0 ->
			assert(depth[id] < DEPTH);
			seen[id].at[depth[id]] = x; depth[id]++;
#ifdef QUIT
			if
			:: !shut[x] -> watched[id] = watched[id] | (1 << (x - 1))
			:: else
			fi
#endif
		:: else
		fi }
	:: atomic { MAY_BE_STALE && (depth[id] == 0 -> root : succ[seen[id].at[depth[id] - 1]]) != 0 ->
		faults++; x = 0 }
	fi;
	if
	:: atomic { x != 0 -> x = 0; goto WALK }
	:: else
	fi;

	/* The tail decides. Dead: follow it. Stalled: beside it. Else wait for anything to change. */
	if
	:: atomic { depth[id] == 0 -> behind[id] = 0; ok = false; goto TAKE }
	:: atomic { depth[id] != 0 && SILENT(seen[id].at[depth[id] - 1]) ->
		behind[id] = seen[id].at[depth[id] - 1]; ok = false; forget(); goto TAKE }
	:: atomic { depth[id] != 0 && !SILENT(seen[id].at[depth[id] - 1]) && HEDGEABLE(seen[id].at[depth[id] - 1]) ->
		behind[id] = seen[id].at[depth[id] - 1]; ok = true; forget(); goto TAKE }
	:: atomic { depth[id] != 0 && (art || err != 0 || !IS_TAIL(seen[id].at[depth[id] - 1])) ->
		forget(); goto LOOK }
	fi;

TAKE:	/* Link a record with a fresh nonce; reading the slot decides whose it is. ok: a hedge */
	atomic {
		if
		:: READ(behind[id]) == 0 ->
#ifdef ONE_NONCE
			n = id + 1; owner[n] = id; shut[n] = false;
#else
			draw();
#endif
			beside[n] = ok;
			tainted[n] = (behind[id] != 0);
			put(behind[id], n);
			mine[id] = n; n = 0;
			assert(succ[mine[id]] == 0 || !LEADS(mine[id]));	/* no chain leads into itself */
		:: else -> behind[id] = 0
		fi;
		ok = false
	};
	if
	:: atomic { mine[id] == 0 -> goto LOOK }
	:: mine[id] != 0
	:: atomic { mine[id] != 0 && MAY_LOSE -> faults++; goto REREAD }
	TROUBLE(CHECK)
	fi;
	goto CHECK;

REREAD:	/* The answer was a refusal: the slot says whose it is. */
	if
#ifndef NO_REREAD
	:: atomic { READ(behind[id]) == mine[id] -> goto CHECK }
	:: atomic { READ(behind[id]) != mine[id] -> mine[id] = 0; behind[id] = 0; goto LOOK }
#else
	:: atomic { true -> mine[id] = 0; behind[id] = 0; goto LOOK }
#endif
	TROUBLE(REREAD)
	fi;

CHECK:	/* After a takeover the root must still lead to the predecessor. */
	if
	:: atomic { behind[id] == 0 -> goto LAST }
	:: atomic { behind[id] != 0 && MAY_BE_STALE -> faults++; withdraw = true; goto SEAL }
	:: atomic { behind[id] != 0 ->
		x = (depth[id] == 0 -> root : succ[seen[id].at[depth[id] - 1]]);
		if
		:: x != 0 && x != behind[id] ->
			assert(depth[id] < DEPTH);
			seen[id].at[depth[id]] = x; depth[id]++
		:: else
		fi }
	TROUBLE(CHECK)
	fi;
	if
	:: atomic { x == behind[id] -> x = 0; forget() }
	:: atomic { x == 0 -> forget(); withdraw = true; goto SEAL }
	:: atomic { x != 0 && x != behind[id] -> x = 0; goto CHECK }
	fi;

LAST:	/* Look once more. */
#ifndef NO_LAST_LOOK
#if defined(FAIL) || defined(QUIT)
	atomic {
		x = err;
		if
#ifdef ART_ONLY_LAST_LOOK
		:: true -> x = 0
#else
#ifdef QUIT
		:: x != 0 && x != NOBODY && (watched[id] & (1 << (x - 1))) == 0 -> x = 0
#endif
		:: else
#endif
		fi
	};
#endif
	if
	:: atomic { art -> x = 0; withdraw = false; goto SEAL }
	:: atomic { !art && x != 0 -> x = 0; withdraw = true; goto SEAL }
	:: atomic { !art && x == 0 }
	:: atomic { art && MAY_BE_STALE -> faults++; x = 0 }
	TROUBLE(LAST)
	fi;
#endif

	atomic {
		compiles++; compiling[id] = true;
		assert(compiles <= 1 + faults)			/* claim: one compile, and one more for each fault */
	};

RUN:	/* Compile, and watch for somebody else's artifact. */
	if
	:: atomic { art -> compiling[id] = false; withdraw = false; goto SEAL }
	:: atomic { !art -> compiling[id] = false; goto MADE }
	:: atomic { MAY_QUIT -> faults++; compiling[id] = false; withdraw = true; left = true; goto SEAL }
	:: atomic { MAY_STALL && !stalled -> faults++; stalled = true; goto RUN }
	:: atomic { MAY_STALL && !stalled -> faults++; stalled = true };
		/* It hangs; in the end, with nobody else about, compile_timeout stops it. */
		if
		:: atomic { art -> compiling[id] = false; withdraw = false; goto SEAL }
		:: atomic { !art && finished == N - 1 -> compiling[id] = false; withdraw = true; left = true; goto SEAL }
		TROUBLE(RUN)
		fi
	TROUBLE(RUN)
	fi;

MADE:
#ifdef FAIL
	withdraw = false; left = true;
#else
#ifndef EARLY_RELEASE
	if
	:: atomic { true -> art = true }
	TROUBLE(MADE)
	fi;
#endif
	withdraw = false;
#endif

SEAL:	/* Close the slot behind me; who finds somebody there was superseded, and deletes nothing. */
#ifndef NO_SEAL
	if
	:: atomic { succ[mine[id]] == 0 ->
		draw(); shut[n] = true; sealed[id] = n; succ[mine[id]] = n; n = 0 }
	:: atomic { succ[mine[id]] != 0 ->
#ifdef ERR_OF_SUPERSEDED
		if
		:: withdraw && left -> tainted[mine[id]] = true; err = mine[id]
		:: else
		fi;
#endif
		goto FREE }
	:: atomic { MAY_BE_FULL -> faults++; dirty = true; goto FREE }
	TROUBLE(SEAL)
	fi;
#endif
#ifndef ROOT_FIRST_RIVAL
	if
	:: atomic { withdraw && behind[id] != 0 -> goto OWN }
	:: else
	fi;
#endif

CLEAR:	/* Walk; if the root leads to me, unlink root, chain, mine. */
#ifndef NO_WALK
	if
	:: atomic {
		x = (depth[id] == 0 -> root : succ[seen[id].at[depth[id] - 1]]);
		if
		:: x != 0 -> assert(depth[id] < DEPTH); seen[id].at[depth[id]] = x; depth[id]++
		:: else
		fi }
	:: atomic { MAY_BE_STALE && (depth[id] == 0 -> root : succ[seen[id].at[depth[id] - 1]]) != 0 ->
		faults++; x = 0 }
	TROUBLE(CLEAR)
	fi;
	if
	:: atomic { x == mine[id] -> x = 0 }
	:: atomic { x == 0 -> forget(); goto OWN }
	:: atomic { x != mine[id] && x != 0 -> x = 0; goto CLEAR }
	fi;
#else
	atomic {
		seen[id].at[0] = (behind[id] == 0 -> mine[id] : behind[id]);
		seen[id].at[1] = (behind[id] == 0 -> 0 : mine[id]);
		depth[id] = (behind[id] == 0 -> 1 : 2)
	};
#endif
#if defined(FAIL) || defined(QUIT)
FAILED:	/* K.err only from one to whom the root leads, and not where an artifact is. */
	if
#ifdef FAIL
	:: atomic { left && !withdraw -> err = NOBODY }
#endif
#ifdef QUIT
	:: atomic { left && withdraw -> err = mine[id] }
#endif
	:: atomic { !left -> goto CHAIN }
	TROUBLE(FAILED)
	fi;
	if
	:: atomic { art -> err = 0 }
	:: atomic { !art }
	TROUBLE(CHAIN)
	fi;
#endif
CHAIN:
	if
	:: atomic { n < depth[id] ->
		x = (n == 0 -> 0 : seen[id].at[n - 1]);
		unlink(x, seen[id].at[n]);
		x = 0; n++ }
	:: atomic { n == depth[id] -> n = 0; forget(); goto UNSEAL }
	TROUBLE(CHAIN)
	fi;
	goto CHAIN;

OWN:	/* Unlink my slot only if it still holds my nonce. */
	if
	:: atomic { READ(behind[id]) == mine[id] }
	:: atomic { READ(behind[id]) != mine[id] -> goto UNSEAL }
	TROUBLE(OWN)
	fi;
	d_step { x = behind[id]; unlink(x, mine[id]); x = 0 };

UNSEAL:
	if
	:: atomic { true ->
#ifdef NO_SEAL
		skip
#else
		unlink(mine[id], sealed[id])
#endif
	}
	TROUBLE(UNSEAL)
	fi;

FREE:
	atomic {
		mine[id] = 0; sealed[id] = 0; behind[id] = 0; withdraw = false;
		if
		:: left -> goto LEFT
		:: else
		fi
	};
#ifdef EARLY_RELEASE
	art = true;
#endif
	goto LOOK;

CRASHED: atomic {
		down[id] = true; compiling[id] = false; mine[id] = 0; sealed[id] = 0; behind[id] = 0;
		forget(); goto OVER
	};

#if defined(FAIL) || defined(QUIT)
SHARED:	/* claim: nobody is failed by a rival, or by one who was superseded */
	atomic { assert(x == NOBODY || !tainted[x]); goto OVER };
#endif

LEFT:	/* its own caller knows how its compile ended */
	goto OVER;

DONE:	/* claim: nobody comes here without an artifact */
	atomic { assert(art); goto OVER };

OVER:
	atomic {
		n = 0; k = 0; j = 0; x = 0; used = false; withdraw = false; left = false; ok = false;
		finished++; ended[id] = true;
		if
		:: finished == N ->
#ifdef TIDY
			k = 1;
			do
			:: k < M -> assert(dirty || succ[k] == 0); k++
			:: else -> break
			od;
			k = 0;
			assert(dirty || root == 0);		/* claim: nothing is left behind, but by a crash */
#endif
			assert(faults != 0 || compiles == 1)	/* claim: without a fault exactly one */
		:: else
		fi
	}
}

init {
	atomic {
		byte i = 0;
		do
		:: i < N -> run Process(i); i++
		:: else -> break
		od
	}
}

#ifdef LIVE
/* claim: whatever happens, everybody comes to an end */
ltl everybody_ends { <> (finished == N) }
#endif
