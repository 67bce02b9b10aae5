package icebergstream;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import scala.Function1;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Extension of Spark's sessions: a session with the setting {@value #CATALOG} runs only statements
 * that stay within this catalog.
 *
 * <p>Spark itself reads each statement and the text of each view. Before anything is analyzed, the
 * parsed plan is checked, since Spark evaluates some expressions during the analysis. The analyzed
 * plan is checked for what the names have turned out to be. Other sessions are not affected.
 */
public final class StatementGuard
    extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  /** Setting of a session: the name of the only catalog that it may use. */
  static final String CATALOG = "spark.icebergstream.onlyCatalog";

  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectParser(GuardedParser::new);
    extensions.injectCheckRule(StatementGuard::check);
    return BoxedUnit.UNIT;
  }

  private static Function1<LogicalPlan, BoxedUnit> check(SparkSession session) {
    return plan -> {
      String catalog = catalogOf(session);
      if (catalog != null) {
        new AnalyzedPlanCheck(catalog).visit(plan);
      }
      return BoxedUnit.UNIT;
    };
  }

  /** Return the only catalog that a session may use; null if it may use all. */
  static String catalogOf(SparkSession session) {
    return ((org.apache.spark.sql.classic.SparkSession) session)
        .sessionState()
        .conf()
        .getConfString(CATALOG, null);
  }
}
