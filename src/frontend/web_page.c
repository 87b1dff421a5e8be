#include "frontend/web_page.h"

#include "base/status.h"

const char web_page_policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct slice web_page_file(enum http_route route, const char **content_type)
{
    switch (route) {
    case ROUTE_PAGE_CSS:
        *content_type = "text/css; charset=utf-8";
        return slice_of((const char *)web_page_css, web_page_css_size);
    case ROUTE_PAGE_JS:
        *content_type = "text/javascript; charset=utf-8";
        return slice_of((const char *)web_page_js, web_page_js_size);
    default:
        *content_type = "text/html; charset=utf-8";
        return slice_of((const char *)web_page_html, web_page_html_size);
    }
}
