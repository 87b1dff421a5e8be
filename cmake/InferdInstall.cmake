# What `cmake --install` puts where, and the Debian package that `cpack` makes of it (in build/PRESET: cpack -G DEB).
include(GNUInstallDirs)

# The manual page is the option table: made by the program itself.
find_program(INFERD_GZIP gzip)
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/inferd.1.gz
    COMMAND inferd docs man > ${CMAKE_BINARY_DIR}/inferd.1
    COMMAND ${INFERD_GZIP} -9nf ${CMAKE_BINARY_DIR}/inferd.1
    DEPENDS inferd VERBATIM)
add_custom_target(manual_page ALL DEPENDS ${CMAKE_BINARY_DIR}/inferd.1.gz)

set(unit_dir lib/systemd/system)
install(TARGETS inferd RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${CMAKE_BINARY_DIR}/inferd.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES configs/systemd/inferd.service configs/systemd/inferd.socket DESTINATION ${unit_dir})
install(FILES configs/systemd/inferd.sysusers DESTINATION lib/sysusers.d RENAME inferd.conf)
install(FILES configs/systemd/inferd.tmpfiles DESTINATION lib/tmpfiles.d RENAME inferd.conf)
install(FILES docs/api.md docs/configuration.md docs/operations.md docs/security.md docs/architecture.md docs/zmq.md
        docs/observability.md docs/planning.md docs/scheduling.md proto/inferd.proto
        DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES configs/systemd/inferd-gpu.conf configs/inferd.json DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
install(FILES examples/zmq_client.c examples/zmq_client.py DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
install(DIRECTORY configs/haproxy configs/nginx configs/grafana configs/prometheus DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
if(EXISTS ${PROJECT_SOURCE_DIR}/include/inferd)
    install(DIRECTORY include/inferd DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()

set(CPACK_PACKAGE_NAME inferd)
set(CPACK_PACKAGE_VENDOR inferd)
set(CPACK_PACKAGE_CONTACT "inferd maintainers <maintainers@inferd.example>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "LLM inference server with the OpenAI HTTP API")
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON) # what it is linked with, by dpkg-shlibdeps
set(CPACK_DEBIAN_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"Answers the OpenAI API from a GGUF file or a Hugging Face folder, on the CPU
or an NVIDIA GPU, with continuous batching over a paged KV cache. Comes with
a hardened systemd unit (notify, watchdog, socket activation, reload).")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
    "${PROJECT_SOURCE_DIR}/configs/debian/postinst;${PROJECT_SOURCE_DIR}/configs/debian/prerm;${PROJECT_SOURCE_DIR}/configs/debian/postrm")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# All that is installed, also where only the target inferd was built.
set(CPACK_INSTALL_COMMANDS "${CMAKE_COMMAND} --build ${CMAKE_BINARY_DIR} --target inferd manual_page inferd_client")
set(CPACK_INSTALL_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/InferdDebian.cmake)
include(CPack)
