/* test_shown.c - nothing that a terminal obeys gets through, and all other text as it was.
 * Method: a table of what each kind of character becomes; every code point and every byte once; each cut of a text. */
#include <stdlib.h>

#include "base/log.h"
#include "base/shown.h"
#include "base/utf8.h"
#include "test.h"

static const char *show(const char *text, size_t len)
{
    static char out[512];

    return shown(slice_of(text, len), out, sizeof out);
}
#define SHOW(literal) show(literal, sizeof(literal) - 1)

TEST(control_characters_are_written_out_and_text_is_kept)
{
    EXPECT_STR(SHOW("plain, é世😀 \\n"), "plain, é世😀 \\n");
    EXPECT_STR(SHOW("a\x1b]0;title\x07z"), "a\\x1b]0;title\\x07z");
    EXPECT_STR(SHOW("a\nb\r\tc\x7f"), "a\\nb\\r\\tc\\x7f");
    EXPECT_STR(SHOW("nul\0in it"), "nul\\x00in it");
    EXPECT_STR(SHOW("csi \xc2\x9b"
                    "31m"),
               "csi \\u009b31m");
    EXPECT_STR(SHOW("turned \xe2\x80\xae\xe2\x81\xa6 line \xe2\x80\xa8"),
               "turned \\u202e\\u2066 line \\u2028");
    EXPECT_STR(SHOW("bad \xff\xc3(\xe4\xb8"), "bad \\xff\\xc3(\\xe4\\xb8");
}

TEST(every_code_point_is_itself_or_an_escape_of_ascii)
{
    char utf8[4], out[SHOWN_MAX];
    size_t len;

    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        if (c >= 0xd800 && c <= 0xdfff) continue;
        unsigned n = utf8_encode(c, utf8);

        EXPECT_EQ(shown_next(slice_of(utf8, n), out, &len), n);
        EXPECT_TRUE(len >= 1 && len <= SHOWN_MAX);
        if (!shown_is_control(c)) EXPECT_TRUE(len == n && memcmp(out, utf8, n) == 0);
        for (size_t i = 0; shown_is_control(c) && i < len; i++)
            EXPECT_TRUE(out[i] > 0x20 && out[i] < 0x7f);
    }
    for (int byte = 0x80; byte < 0x100; byte++) {
        char one = (char)byte;

        EXPECT_EQ(shown_next(slice_of(&one, 1), out, &len), 1);
        EXPECT_TRUE(len == 4 && out[0] == '\\' && out[1] == 'x');
    }
}

TEST(what_does_not_fit_is_cut_at_a_whole_character)
{
    static const char text[] = "ab\x1b"
                               "é世z",
                      whole[] = "ab\\x1bé世z";
    char out[32];

    for (size_t size = 1; size < 16; size++) {
        memset(out, 'X', sizeof out);
        shown(slice_of(text, sizeof text - 1), out, size);
        EXPECT_TRUE(strlen(out) < size && memcmp(out, whole, strlen(out)) == 0);
        EXPECT_TRUE(utf8_valid(slice_str(out)) && out[size] == 'X');
        EXPECT_TRUE(!strstr(out, "\\") || strstr(out, "\\x1b"));
    }
}

TEST(a_stream_keeps_lines_only_where_it_may)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);

    shown_put(SLICE("a\n\tb\x1b\r"), true, to);
    shown_put(SLICE("|a\n"), false, to);
    fclose(to);
    EXPECT_STR(text, "a\n\tb\\x1b\\r|a\\n");
    free(text);
}

TEST(a_line_of_the_log_is_one_line_in_either_form)
{
    static const char keys[] = "name=\"a\x1b[2J\nerror forged \xc2\x9b\" next=1";
    char line[LOG_LINE_MAX + 1];

    log_set_timestamps(0);
    line[log_line(LOG_INFO, "event", keys, line)] = 0;
    EXPECT_STR(line, "info event name=\"a\\x1b[2J\\nerror forged \\u009b\" next=1\n");
    log_set_format(LOG_JSON);
    line[log_line(LOG_INFO, "event", keys, line)] = 0;
    EXPECT_STR(line,
               "{\"level\":\"info\",\"event\":\"event\",\"name\":\"a\\u001b[2J\\u000aerror forged "
               "\\u009b\",\"next\":1}\n");
    log_set_format(LOG_TEXT);
    log_set_timestamps(1);
}

TEST(a_line_that_is_too_long_ends_at_a_whole_character)
{
    static char keys[2 * LOG_LINE_MAX];
    char line[LOG_LINE_MAX + 1];

    log_set_timestamps(0);
    for (size_t lead = 0; lead < 8; lead++) {
        memset(keys, 'a', lead);
        for (size_t i = lead; i + 8 < sizeof keys; i += 7)
            memcpy(keys + i,
                   "a\x1b\xc3\xa9"
                   "bcd",
                   7);
        size_t len = log_line(LOG_INFO, "e", keys, line);

        EXPECT_TRUE(len <= LOG_LINE_MAX && len > LOG_LINE_MAX - 16 && line[len - 1] == '\n');
        EXPECT_TRUE(utf8_valid(slice_of(line, len)) && !memchr(line, 0x1b, len));
    }
    memset(keys, 'a', sizeof keys - 1);
    EXPECT_EQ(log_line(LOG_INFO, "e", keys, line),
              LOG_LINE_MAX - 3); /* all but what closes a line of JSON */
    log_set_timestamps(1);
}
