/* Exchanges numbered RDS messages over RDMA with another one of itself: rds_exchange OWN OTHER PORT COUNT [first]
 *
 * OWN and OTHER are addresses of one family. Either side sends COUNT messages of different lengths, most of them longer than
 * a fragment of RDS, and compares the sender, the number, the length and every byte of what it gets: RDS delivers each message
 * once and in order. A message to nobody is lost, so the one that goes first wants the other one to have said that it is bound.
 * Ends with status 0 when all came right and all of its own were acknowledged.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/rds.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#ifndef AF_RDS
#define AF_RDS 21
#endif

/* Bytes that may wait for acknowledgement. The last message has as many: the socket takes more once all of it is acknowledged. */
#define SEND_ROOM 32768
#define RECEIVE_ROOM 200000
/* Messages that one side is ahead of the other at most. */
#define AHEAD 4
#define PATIENCE_MS 60000

struct head {
    uint64_t number;
    uint64_t from_first;
};

static long count, sent, received, bytes;
static int first;

static size_t length_of(long number)
{
    return number == count - 1 ? SEND_ROOM : sizeof(struct head) + (size_t)(number * 3889 % 9973);
}

static unsigned char byte_of(int from_first, long number, size_t at)
{
    return (unsigned char)(from_first * 101 + number * 31 + at * 7 + (at >> 8));
}

static void fail(const char *what)
{
    printf("FAILED: %s (%s) after %ld messages sent, %ld received\n", what, strerror(errno), sent, received);
    exit(1);
}

static void wrong(const char *what, long found, long wanted)
{
    printf("WRONG: %s of message %ld: %ld instead of %ld\n", what, received, found, wanted);
    exit(1);
}

static socklen_t parse(struct sockaddr_storage *to, const char *address, const char *port)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)to;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)to;

    memset(to, 0, sizeof *to);
    if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)atoi(port));
        return sizeof *v4;
    }
    if (inet_pton(AF_INET6, address, &v6->sin6_addr) != 1)
        fail(address);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons((uint16_t)atoi(port));
    return sizeof *v6;
}

/* False when the socket takes no more for now. */
static int send_one(int fd, const struct sockaddr_storage *to, socklen_t size, unsigned char *buffer)
{
    size_t length = length_of(sent);
    struct head head = {.number = (uint64_t)sent, .from_first = (uint64_t)first};

    for (size_t at = 0; at < length; at++)
        buffer[at] = byte_of(first, sent, at);
    memcpy(buffer, &head, sizeof head);
    ssize_t done = sendto(fd, buffer, length, MSG_DONTWAIT, (const struct sockaddr *)to, size);
    if (done < 0 && (errno == EAGAIN || errno == ENOBUFS))
        return 0;
    if (done != (ssize_t)length)
        fail("sendto");
    sent++;
    return 1;
}

/* False when nothing is there. */
static int receive_one(int fd, unsigned char *buffer)
{
    struct head head;
    size_t length = received < count ? length_of(received) : 0;
    ssize_t found = recv(fd, buffer, SEND_ROOM, MSG_DONTWAIT);

    if (found < 0 && errno == EAGAIN)
        return 0;
    if (found < 0)
        fail("recv");
    if ((size_t)found != length)
        wrong("the length", found, (long)length);
    memcpy(&head, buffer, sizeof head);
    if (head.number != (uint64_t)received)
        wrong("the number", (long)head.number, received);
    if (head.from_first != (uint64_t)!first)
        wrong("the sender", (long)head.from_first, !first);
    for (size_t at = sizeof head; at < length; at++)
        if (buffer[at] != byte_of(!first, received, at))
            wrong("a byte", buffer[at], byte_of(!first, received, at));
    received++;
    bytes += found;
    return 1;
}

int main(int count_of_words, char **words)
{
    static unsigned char buffer[SEND_ROOM];
    struct sockaddr_storage own, other;
    int transport = RDS_TRANS_IB, send_room = SEND_ROOM, receive_room = RECEIVE_ROOM;

    if (count_of_words < 5) {
        fprintf(stderr, "usage: rds_exchange OWN OTHER PORT COUNT [first]\n");
        return 2;
    }
    count = atol(words[4]);
    first = count_of_words > 5;
    socklen_t own_size = parse(&own, words[1], words[3]), other_size = parse(&other, words[2], words[3]);
    int fd = socket(AF_RDS, SOCK_SEQPACKET, 0);
    if (fd < 0)
        fail("socket");
    /* RDMA or nothing. */
    if (setsockopt(fd, SOL_RDS, SO_RDS_TRANSPORT, &transport, sizeof transport))
        fail("the transport");
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_room, sizeof send_room) ||
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_room, sizeof receive_room))
        fail("the buffers");
    if (bind(fd, (struct sockaddr *)&own, own_size))
        fail("bind");
    printf("bound\n");
    fflush(stdout);
    for (;;) {
        int may_send = sent < count && sent < received + AHEAD && (first || received > 0);

        if (receive_one(fd, buffer) || (may_send && send_one(fd, &other, other_size, buffer)))
            continue;
        int done = sent == count && received == count;
        struct pollfd wait = {.fd = fd, .events = (short)((done ? 0 : POLLIN) | (done || may_send ? POLLOUT : 0))};
        /* The one that is not first waits for its first message as long as it takes. */
        int ready = poll(&wait, 1, first || received > 0 ? PATIENCE_MS : -1);
        if (ready < 0)
            fail("poll");
        if (ready == 0) {
            errno = ETIMEDOUT;
            fail("the other one");
        }
        if (done)
            break;
    }
    printf("RIGHT: %ld messages sent, %ld received, %ld bytes\n", sent, received, bytes);
    return 0;
}
