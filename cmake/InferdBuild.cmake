# How every module, test and fuzzer of inferd is built.
include(CheckLanguage)
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

# Where ccache is there, several checkouts and presets share what they compile.
find_program(INFERD_CCACHE ccache)
if(INFERD_CCACHE)
    set(CMAKE_C_COMPILER_LAUNCHER ${INFERD_CCACHE})
    set(INFERD_CCACHE_RUN ${INFERD_CCACHE}) # in front of a compiler that is called directly
endif()

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON) # POSIX and GNU interfaces of libc (pthreads, epoll, memfd ...)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
endif()

# No NDEBUG anywhere: asserts are kept in release builds (docs/architecture.md, errors).
set(CMAKE_C_FLAGS_RELEASE "-O3 -g1")
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1 -g -fno-omit-frame-pointer")
set(CMAKE_C_FLAGS_DEBUG "-O0 -g3 -DINFERD_DEBUG=1")

option(INFERD_TESTS "build the tests" ON)
set(INFERD_CUDA AUTO CACHE STRING "build the CUDA device: ON, OFF, or AUTO (where nvcc is found)")
set(INFERD_SANITIZE "" CACHE STRING "sanitizers for -fsanitize=, empty for none")
set(INFERD_WARNINGS -Wall -Wextra -Werror -Wshadow -Wpointer-arith -Wstrict-prototypes
    -Wmissing-prototypes -Wwrite-strings -Wvla -Wundef)

# Sums must not change with the compiler's mood: no contraction across statements, no fast-math.
# -fno-omit-frame-pointer keeps perf usable on a production daemon.
add_compile_options($<$<COMPILE_LANGUAGE:C>:-fno-omit-frame-pointer>
                    $<$<COMPILE_LANGUAGE:C>:-ffp-contract=off>)
add_compile_definitions(_GNU_SOURCE)
if(INFERD_SANITIZE)
    add_compile_options(-fsanitize=${INFERD_SANITIZE} -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${INFERD_SANITIZE})
    add_compile_definitions(INFERD_SANITIZED=1)
endif()

find_program(INFERD_NVCC nvcc HINTS /usr/local/cuda/bin)
set(INFERD_HAVE_CUDA OFF)
if(INFERD_CUDA STREQUAL "ON" OR (INFERD_CUDA STREQUAL "AUTO" AND INFERD_NVCC))
    if(NOT INFERD_NVCC)
        message(FATAL_ERROR "INFERD_CUDA=ON, but nvcc was not found on PATH or in /usr/local/cuda/bin")
    endif()
    set(INFERD_HAVE_CUDA ON)
endif()
message(STATUS "inferd: CUDA device ${INFERD_HAVE_CUDA}, sanitizers '${INFERD_SANITIZE}'")

# inferd_module(NAME SOURCES a.c ... DEPENDS base ... LIBRARIES PkgConfig::X ...)
# One static library per folder of src/. Include lines are written from src/.
function(inferd_module name)
    cmake_parse_arguments(M "" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
    add_library(inferd_${name} STATIC ${M_SOURCES})
    target_compile_options(inferd_${name} PRIVATE $<$<COMPILE_LANGUAGE:C>:${INFERD_WARNINGS}>)
    target_include_directories(inferd_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
    foreach(dep ${M_DEPENDS})
        target_link_libraries(inferd_${name} PUBLIC inferd_${dep})
    endforeach()
    target_link_libraries(inferd_${name} PUBLIC ${M_LIBRARIES} Threads::Threads m)
endfunction()

set(INFERD_TEST_TIMEOUT_S 600 CACHE STRING "seconds after which a test counts as hung; the long tier needs more")

# inferd_test(NAME SOURCES tests/... DEPENDS module ... [LABELS ...] [TIMEOUT s] [THREADS PART|NONE])
# A cmocka program: bin/NAME, known to ctest as NAME. tests/test.h makes main().
# THREADS says what of it has more than one thread, which is all that ThreadSanitizer, at ten times the price, can judge: the
# tests whose names contain PART, or NONE. Without it all run there.
function(inferd_test name)
    cmake_parse_arguments(T "" "TIMEOUT;THREADS" "SOURCES;DEPENDS;LIBRARIES;LABELS" ${ARGN})
    add_executable(${name} ${T_SOURCES} ${PROJECT_SOURCE_DIR}/tests/test_main.c)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:C>:${INFERD_WARNINGS}>)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
    target_compile_definitions(${name} PRIVATE
        INFERD_SOURCE_DIR="${PROJECT_SOURCE_DIR}" INFERD_BINARY_DIR="${CMAKE_BINARY_DIR}")
    foreach(dep ${T_DEPENDS})
        target_link_libraries(${name} PRIVATE inferd_${dep})
    endforeach()
    target_link_libraries(${name} PRIVATE ${T_LIBRARIES} cmocka)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    set(part "")
    if(T_THREADS AND INFERD_SANITIZE MATCHES thread)
        if(T_THREADS STREQUAL "NONE")
            return()
        endif()
        set(part ${T_THREADS})
    endif()
    add_test(NAME ${name} COMMAND ${name} ${part})
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT ${INFERD_TEST_TIMEOUT_S})
    endif()
    set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS}")
endfunction()

# inferd_fuzzer(NAME SOURCES tests/fuzz/fuzz_x.c DEPENDS module ...)
# The source defines LLVMFuzzerTestOneInput. tests/fuzz/fuzz_main.c is a driver of our own (gcc has
# no libFuzzer): it replays a corpus, then mutates it for INFERD_FUZZ_SECONDS (default 2).
function(inferd_fuzzer name)
    cmake_parse_arguments(F "" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
    add_executable(${name} ${F_SOURCES} ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_main.c)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:C>:${INFERD_WARNINGS}>)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
    foreach(dep ${F_DEPENDS})
        target_link_libraries(${name} PRIVATE inferd_${dep})
    endforeach()
    target_link_libraries(${name} PRIVATE ${F_LIBRARIES})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    add_test(NAME ${name} COMMAND ${name} ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${INFERD_TEST_TIMEOUT_S} LABELS fuzz)
endfunction()
