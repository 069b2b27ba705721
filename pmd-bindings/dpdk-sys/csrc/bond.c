/* The bonding driver: see shim.h. */
#include <errno.h>

#include "shim.h"

#if __has_include(<rte_eth_bond.h>)
#include <rte_eth_bond.h>
#include <rte_eth_bond_8023ad.h>
#include <rte_version.h>

#if RTE_VERSION < RTE_VERSION_NUM(23, 11, 0, 0)
#define rte_eth_bond_member_add rte_eth_bond_slave_add
#define rte_eth_bond_8023ad_member_info rte_eth_bond_8023ad_slave_info
#endif

int dpdk_sys_bond_create(const char *name, uint8_t mode, uint8_t socket)
{
	return rte_eth_bond_create(name, mode, socket);
}

int dpdk_sys_bond_add(uint16_t bond, uint16_t member)
{
	return rte_eth_bond_member_add(bond, member);
}

int dpdk_sys_bond_hash(uint16_t bond, uint8_t policy)
{
	return rte_eth_bond_xmit_policy_set(bond, policy);
}

int dpdk_sys_bond_lacp(uint16_t bond, uint16_t member, uint8_t *actor, uint8_t *partner)
{
	struct rte_eth_bond_8023ad_member_info info;
	int ret = rte_eth_bond_8023ad_member_info(bond, member, &info);

	if (ret == 0) {
		*actor = info.actor_state;
		*partner = info.partner_state;
	}
	return ret;
}
#else
int dpdk_sys_bond_create(const char *name, uint8_t mode, uint8_t socket)
{
	(void)name;
	(void)mode;
	(void)socket;
	return -ENOTSUP;
}

int dpdk_sys_bond_add(uint16_t bond, uint16_t member)
{
	(void)bond;
	(void)member;
	return -ENOTSUP;
}

int dpdk_sys_bond_hash(uint16_t bond, uint8_t policy)
{
	(void)bond;
	(void)policy;
	return -ENOTSUP;
}

int dpdk_sys_bond_lacp(uint16_t bond, uint16_t member, uint8_t *actor, uint8_t *partner)
{
	(void)bond;
	(void)member;
	(void)actor;
	(void)partner;
	return -ENOTSUP;
}
#endif
