# cmake -DOUT=x.c -DHEADER=frontend/web_page.h -DFILES="name=path;..." -P EmbedFiles.cmake
# Writes each file's bytes as an array of C: `const unsigned char NAME[]` and `const size_t NAME_size`.
set(text "/* made by cmake/EmbedFiles.cmake */\n#include \"${HEADER}\"\n")
foreach(entry IN LISTS FILES)
    string(REGEX MATCH "^([^=]+)=(.*)$" found "${entry}")
    set(name "${CMAKE_MATCH_1}")
    file(READ "${CMAKE_MATCH_2}" hex HEX)
    string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
    string(APPEND text "\nconst unsigned char ${name}[] = {\n${bytes}\n};\nconst size_t ${name}_size = sizeof ${name};\n")
endforeach()
file(WRITE "${OUT}" "${text}")
