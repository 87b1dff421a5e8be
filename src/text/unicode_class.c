#include "text/unicode_class.h"

#include <pthread.h>
#include <string.h>

uint8_t unicode_classes[0x110000];

static void expand(void)
{
    for (uint32_t i = 0; i < unicode_run_count; i++) {
        uint32_t begin = unicode_runs[i] >> 8;
        uint32_t end = i + 1 < unicode_run_count ? unicode_runs[i + 1] >> 8 : 0x110000;
        uint8_t classes = (uint8_t)unicode_runs[i];

        /* Most of the table is class 0: those pages are never touched. */
        if (classes) memset(unicode_classes + begin, classes, end - begin);
    }
}

void unicode_class_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, expand);
}
