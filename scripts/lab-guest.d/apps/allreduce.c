/* An MPI job that checks what it computes: allreduce ROUNDS COUNT [FILE]
 *
 * Each round sums COUNT numbers over all ranks, passes as many around the ring, and compares both, number by number,
 * with what arithmetic says they must be. Rank 0 says each hundredth round and, at the end, how many were right. A wrong number
 * ends the job with status 1. With FILE the job ends early, as soon as rank 0 sees that file.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* What rank `rank` gives at `at` of `round`: different everywhere, and sums stay far from overflow. */
static long given(long rank, long round, long at) { return (rank + 1) * 1000003L + round * 7919L + at * 31L; }

static void check(long found, long wanted, const char *what, long round, long at)
{
    if (found != wanted) {
        printf("WRONG: %s of round %ld at %ld: %ld instead of %ld\n", what, round, at, found, wanted);
        fflush(stdout);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

int main(int count_of_words, char **words)
{
    int rank, ranks, enough = 0;
    long rounds, count, done = 0;

    MPI_Init(&count_of_words, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    rounds = count_of_words > 1 ? atol(words[1]) : 10;
    count = count_of_words > 2 ? atol(words[2]) : 1000;
    long *own = calloc(count, sizeof *own), *sum = calloc(count, sizeof *sum), *passed = calloc(count, sizeof *passed);
    if (!own || !sum || !passed)
        MPI_Abort(MPI_COMM_WORLD, 2);
    for (long round = 0; round < rounds && !enough; round++) {
        int from = (rank + ranks - 1) % ranks, to = (rank + 1) % ranks;
        for (long at = 0; at < count; at++)
            own[at] = given(rank, round, at);
        MPI_Allreduce(own, sum, (int)count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        MPI_Sendrecv(own, (int)count, MPI_LONG, to, 1, passed, (int)count, MPI_LONG, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (long at = 0; at < count; at++) {
            long wanted = 0;
            for (int other = 0; other < ranks; other++)
                wanted += given(other, round, at);
            check(sum[at], wanted, "sum", round, at);
            check(passed[at], given(from, round, at), "message", round, at);
        }
        done = round + 1;
        enough = rank == 0 && count_of_words > 3 && access(words[3], F_OK) == 0;
        MPI_Bcast(&enough, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (rank == 0 && round % 100 == 99) {
            printf("round %ld\n", round + 1);
            fflush(stdout);
        }
    }
    if (rank == 0)
        printf("RIGHT: %ld rounds of %ld numbers over %d ranks\n", done, count, ranks);
    free(own);
    free(sum);
    free(passed);
    MPI_Finalize();
    return 0;
}
