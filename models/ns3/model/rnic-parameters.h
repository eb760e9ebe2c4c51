/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_PARAMETERS_H
#define RNIC_PARAMETERS_H

#include "rnic-frame.h"

#include "ns3/attribute.h"
#include "ns3/type-id.h"

#include <string>

namespace ns3
{

/**
 * \ingroup rnic
 * Adds the attribute of a parameter that the model declares: name, help, default and bounds are the declaration's.
 * \param tid the type that gets the attribute
 * \param spec the declaration
 * \param accessor reads and writes the attribute
 * \return the type
 */
TypeId AddParameter(TypeId tid, const netacc::AttributeSpec& spec, Ptr<const AttributeAccessor> accessor);

/**
 * \ingroup rnic
 * \param specs declarations
 * \param name of an attribute
 * \return its declaration. The program ends if there is none.
 */
const netacc::AttributeSpec& FindParameter(const rust::Vec<netacc::AttributeSpec>& specs, const std::string& name);

/**
 * \ingroup rnic
 * \param value of an attribute that AddParameter has added
 * \return the value in the form that the model reads
 */
std::string ParameterText(const AttributeValue& value);

} // namespace ns3

#endif /* RNIC_PARAMETERS_H */
