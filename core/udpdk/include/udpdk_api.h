/* UDPDK's interface (https://github.com/leoll2/UDPDK), over the sockets of this host: link with -ludpdk.
 *
 * Each function does what the one of the same name without "udpdk_" does, and fails as that one does. */

#ifndef UDPDK_API_H
#define UDPDK_API_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Call it first. The arguments are not used. Returns 0. */
int udpdk_init(int argc, char *argv[]);
/* Makes calls that receive fail with EINTR until udpdk_cleanup. May be called by a signal handler. */
void udpdk_interrupt(int signum);
/* Closes all sockets. */
void udpdk_cleanup(void);

int udpdk_socket(int domain, int type, int protocol);
int udpdk_getsockopt(int sockfd, int level, int optname, void *optval, socklen_t *optlen);
int udpdk_setsockopt(int sockfd, int level, int optname, const void *optval, socklen_t optlen);
int udpdk_bind(int s, const struct sockaddr *addr, socklen_t addrlen);
ssize_t udpdk_sendto(int sockfd, const void *buf, size_t len, int flags, const struct sockaddr *dest_addr,
                     socklen_t addrlen);
ssize_t udpdk_recvfrom(int s, void *buf, size_t len, int flags, struct sockaddr *src_addr, socklen_t *addrlen);
int udpdk_close(int s);

#ifdef __cplusplus
}
#endif

#endif
