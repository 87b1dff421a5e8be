/* web_page.h - the page at `/`: three files of src/frontend/web, held in the program.
 *
 * The page talks to its own server only; its content policy lets it load and ask nothing else. */
#pragma once

#include <stddef.h>

#include "base/slice.h"
#include "observe/http_stats.h"

extern const unsigned char web_page_html[], web_page_css[], web_page_js[];
extern const size_t web_page_html_size, web_page_css_size, web_page_js_size;

/* The bytes of ROUTE_PAGE, ROUTE_PAGE_CSS or ROUTE_PAGE_JS, static. *content_type: static too. */
struct slice web_page_file(enum http_route route, const char **content_type);
/* Content-Security-Policy of the page. */
extern const char web_page_policy[];
