from dbt.tests.adapter.utils.base_array_utils import BaseArrayUtils as _BaseArrayUtils
from dbt.tests.adapter.utils.base_utils import BaseUtils as _BaseUtils
from dbt.tests.adapter.utils.data_types.base_data_type_macro import BaseDataTypeMacro as _BaseDataTypeMacro
from dbt.tests.adapter.utils.data_types.test_type_bigint import BaseTypeBigInt as _BaseTypeBigInt
from dbt.tests.adapter.utils.data_types.test_type_boolean import BaseTypeBoolean as _BaseTypeBoolean
from dbt.tests.adapter.utils.data_types.test_type_float import BaseTypeFloat as _BaseTypeFloat
from dbt.tests.adapter.utils.data_types.test_type_int import BaseTypeInt as _BaseTypeInt
from dbt.tests.adapter.utils.data_types.test_type_numeric import BaseTypeNumeric as _BaseTypeNumeric
from dbt.tests.adapter.utils.data_types.test_type_string import BaseTypeString as _BaseTypeString
from dbt.tests.adapter.utils.data_types.test_type_timestamp import BaseTypeTimestamp as _BaseTypeTimestamp
from dbt.tests.adapter.utils.test_any_value import BaseAnyValue as _BaseAnyValue
from dbt.tests.adapter.utils.test_array_append import BaseArrayAppend as _BaseArrayAppend
from dbt.tests.adapter.utils.test_array_concat import BaseArrayConcat as _BaseArrayConcat
from dbt.tests.adapter.utils.test_array_construct import BaseArrayConstruct as _BaseArrayConstruct
from dbt.tests.adapter.utils.test_bool_or import BaseBoolOr as _BaseBoolOr
from dbt.tests.adapter.utils.test_cast import BaseCast as _BaseCast
from dbt.tests.adapter.utils.test_cast_bool_to_text import BaseCastBoolToText as _BaseCastBoolToText
from dbt.tests.adapter.utils.test_concat import BaseConcat as _BaseConcat
from dbt.tests.adapter.utils.test_current_timestamp import BaseCurrentTimestamp as _BaseCurrentTimestamp
from dbt.tests.adapter.utils.test_current_timestamp import BaseCurrentTimestampAware as _BaseCurrentTimestampAware
from dbt.tests.adapter.utils.test_current_timestamp import BaseCurrentTimestampNaive as _BaseCurrentTimestampNaive
from dbt.tests.adapter.utils.test_date import BaseDate as _BaseDate
from dbt.tests.adapter.utils.test_date_spine import BaseDateSpine as _BaseDateSpine
from dbt.tests.adapter.utils.test_date_trunc import BaseDateTrunc as _BaseDateTrunc
from dbt.tests.adapter.utils.test_dateadd import BaseDateAdd as _BaseDateAdd
from dbt.tests.adapter.utils.test_datediff import BaseDateDiff as _BaseDateDiff
from dbt.tests.adapter.utils.test_equals import BaseEquals as _BaseEquals
from dbt.tests.adapter.utils.test_escape_single_quotes import BaseEscapeSingleQuotesQuote as _BaseEscapeSingleQuotesQuote
from dbt.tests.adapter.utils.test_escape_single_quotes import BaseEscapeSingleQuotesBackslash as _BaseEscapeSingleQuotesBackslash
from dbt.tests.adapter.utils.test_except import BaseExcept as _BaseExcept
from dbt.tests.adapter.utils.test_generate_series import BaseGenerateSeries as _BaseGenerateSeries
from dbt.tests.adapter.utils.test_get_intervals_between import BaseGetIntervalsBetween as _BaseGetIntervalsBetween
from dbt.tests.adapter.utils.test_get_powers_of_two import BaseGetPowersOfTwo as _BaseGetPowersOfTwo
from dbt.tests.adapter.utils.test_hash import BaseHash as _BaseHash
from dbt.tests.adapter.utils.test_intersect import BaseIntersect as _BaseIntersect
from dbt.tests.adapter.utils.test_last_day import BaseLastDay as _BaseLastDay
from dbt.tests.adapter.utils.test_length import BaseLength as _BaseLength
from dbt.tests.adapter.utils.test_listagg import BaseListagg as _BaseListagg
from dbt.tests.adapter.utils.test_null_compare import BaseMixedNullCompare as _BaseMixedNullCompare
from dbt.tests.adapter.utils.test_null_compare import BaseNullCompare as _BaseNullCompare
from dbt.tests.adapter.utils.test_position import BasePosition as _BasePosition
from dbt.tests.adapter.utils.test_replace import BaseReplace as _BaseReplace
from dbt.tests.adapter.utils.test_right import BaseRight as _BaseRight
from dbt.tests.adapter.utils.test_safe_cast import BaseSafeCast as _BaseSafeCast
from dbt.tests.adapter.utils.test_source_freshness_custom_info import BaseCalculateFreshnessMethod as _BaseCalculateFreshnessMethod
from dbt.tests.adapter.utils.test_split_part import BaseSplitPart as _BaseSplitPart
from dbt.tests.adapter.utils.test_string_literal import BaseStringLiteral as _BaseStringLiteral
from dbt.tests.adapter.utils.test_timestamps import BaseCurrentTimestamps as _BaseCurrentTimestamps
from dbt.tests.adapter.utils.test_validate_sql import BaseValidateSqlMethod as _BaseValidateSqlMethod


class TestArrayUtils(_BaseArrayUtils):
    pass


class TestUtils(_BaseUtils):
    pass


class TestDataTypeMacro(_BaseDataTypeMacro):
    pass


class TestTypeBigInt(_BaseTypeBigInt):
    pass


class TestTypeBoolean(_BaseTypeBoolean):
    pass


class TestTypeFloat(_BaseTypeFloat):
    pass


class TestTypeInt(_BaseTypeInt):
    pass


class TestTypeNumeric(_BaseTypeNumeric):
    pass


class TestTypeString(_BaseTypeString):
    pass


class TestTypeTimestamp(_BaseTypeTimestamp):
    pass


class TestAnyValue(_BaseAnyValue):
    pass


class TestArrayAppend(_BaseArrayAppend):
    pass


class TestArrayConcat(_BaseArrayConcat):
    pass


class TestArrayConstruct(_BaseArrayConstruct):
    pass


class TestBoolOr(_BaseBoolOr):
    pass


class TestCast(_BaseCast):
    pass


class TestCastBoolToText(_BaseCastBoolToText):
    pass


class TestConcat(_BaseConcat):
    pass


class TestCurrentTimestamp(_BaseCurrentTimestamp):
    pass


class TestCurrentTimestampAware(_BaseCurrentTimestampAware):
    pass


class TestCurrentTimestampNaive(_BaseCurrentTimestampNaive):
    pass


class TestDate(_BaseDate):
    pass


class TestDateSpine(_BaseDateSpine):
    pass


class TestDateTrunc(_BaseDateTrunc):
    pass


class TestDateAdd(_BaseDateAdd):
    pass


class TestDateDiff(_BaseDateDiff):
    pass


class TestEquals(_BaseEquals):
    pass


class TestEscapeSingleQuotesQuote(_BaseEscapeSingleQuotesQuote):
    pass


class TestEscapeSingleQuotesBackslash(_BaseEscapeSingleQuotesBackslash):
    pass


class TestExcept(_BaseExcept):
    pass


class TestGenerateSeries(_BaseGenerateSeries):
    pass


class TestGetIntervalsBetween(_BaseGetIntervalsBetween):
    pass


class TestGetPowersOfTwo(_BaseGetPowersOfTwo):
    pass


class TestHash(_BaseHash):
    pass


class TestIntersect(_BaseIntersect):
    pass


class TestLastDay(_BaseLastDay):
    pass


class TestLength(_BaseLength):
    pass


class TestListagg(_BaseListagg):
    pass


class TestMixedNullCompare(_BaseMixedNullCompare):
    pass


class TestNullCompare(_BaseNullCompare):
    pass


class TestPosition(_BasePosition):
    pass


class TestReplace(_BaseReplace):
    pass


class TestRight(_BaseRight):
    pass


class TestSafeCast(_BaseSafeCast):
    pass


class TestCalculateFreshnessMethod(_BaseCalculateFreshnessMethod):
    pass


class TestSplitPart(_BaseSplitPart):
    pass


class TestStringLiteral(_BaseStringLiteral):
    pass


class TestCurrentTimestamps(_BaseCurrentTimestamps):
    pass


class TestValidateSqlMethod(_BaseValidateSqlMethod):
    pass
