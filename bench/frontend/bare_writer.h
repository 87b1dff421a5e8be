/* bare_writer.h - the least that a server of paced streams can be: what the kernel takes to put small events into many loopback
 * connections, and how late they come then. The peer of stream_bench.c. */
#pragma once

#include <stdint.h>

/* Starts a child that accepts `streams` connections at *port of the loopback, reads something from each, then sends a head
 * of HTTP and, every step_ns, one event of a token into each of them, one after the other by send(MSG_DONTWAIT); at the end
 * the finish. The events are inferd's in size and form, made beforehand. Returns its process id. */
int bare_writer_start(uint32_t streams, uint32_t tokens, int64_t step_ns, uint16_t *port);
void bare_writer_end(int pid);
