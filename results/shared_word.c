/*
 * Two processes that answer each other through a word of shared memory, each on a processor of its own. What their round trips
 * deviate by is the machine's doing alone. See results/deviation.py.
 *
 *     shared_word SECONDS PROCESSOR PROCESSOR
 */
#define _GNU_SOURCE
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/** Round trips before those that count. */
#define WARM_UP 100000

struct shared {
	_Alignas(64) _Atomic uint64_t asked;
	_Alignas(64) _Atomic uint64_t answered;
	_Alignas(64) _Atomic int over;
};

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void run_on(const char *processor)
{
	cpu_set_t only;

	CPU_ZERO(&only);
	CPU_SET(atoi(processor), &only);
	if (sched_setaffinity(0, sizeof(only), &only))
		exit(1);
}

static void answer(struct shared *shared)
{
	uint64_t last = 0;

	while (!atomic_load(&shared->over)) {
		uint64_t asked = atomic_load(&shared->asked);

		if (asked != last)
			atomic_store(&shared->answered, last = asked);
	}
}

static void ask(struct shared *shared, uint64_t number)
{
	atomic_store(&shared->asked, number);
	while (atomic_load(&shared->answered) != number)
		;
}

int main(int argc, char **argv)
{
	struct shared *shared;
	double begun, end, sum = 0, squares = 0;
	uint64_t number = 0, count = 0;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (argc != 4 || shared == MAP_FAILED)
		return 2;
	if (fork() == 0) {
		run_on(argv[2]);
		answer(shared);
		return 0;
	}
	run_on(argv[3]);
	while (number < WARM_UP)
		ask(shared, ++number);
	begun = now();
	end = begun + atof(argv[1]) * 1e6;
	while (begun < end) {
		double trip = -begun;

		ask(shared, ++number);
		begun = now();
		trip += begun;
		sum += trip;
		squares += trip * trip;
		count++;
	}
	atomic_store(&shared->over, 1);
	wait(NULL);
	sum /= count;
	printf("{\"count\": %lu, \"mean\": %.3f, \"deviation\": %.3f}\n", count, sum, sqrt(squares / count - sum * sum));
	return 0;
}
