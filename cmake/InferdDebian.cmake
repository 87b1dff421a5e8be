# Run by cpack on the staged tree: what Debian's policy asks of a package and an installation by hand does not need.
set(root ${CMAKE_CURRENT_BINARY_DIR})
if(DEFINED CPACK_TEMPORARY_INSTALL_DIRECTORY)
    set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY})
endif()
set(doc ${root}/usr/share/doc/inferd)
file(MAKE_DIRECTORY ${doc})
file(WRITE ${doc}/copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: inferd

Files: *
Copyright: 2026 inferd maintainers
License: Apache-2.0
 On Debian systems the full text is in /usr/share/common-licenses/Apache-2.0.
")
file(WRITE ${doc}/changelog "inferd (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * Built from the source tree.

 -- ${CPACK_PACKAGE_CONTACT}  Thu, 01 Jan 2026 00:00:00 +0000
")
execute_process(COMMAND gzip -9nf ${doc}/changelog COMMAND_ERROR_IS_FATAL ANY)
